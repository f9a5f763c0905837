"""Every claim has a hand-written mutant that turns it red: else it may be vacuous."""

from pathlib import Path

from atlas.taxonomy import Technique, load

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = [t for t in load(ROOT).techniques.values() if (ROOT / t.exemplar).exists()]


def matrix(technique: Technique) -> dict[str, list[str]]:
    """Claim -> the mutants that turn it red."""
    red: dict[str, list[str]] = {claim.id: [] for claim in technique.claims}
    for mutant in technique.mutants:
        for claim in mutant.fails:
            red[claim].append(mutant.id)
    return red


def test_every_claim_has_a_mutant_that_turns_it_red() -> None:
    never = {
        t.id: [claim for claim, mutants in matrix(t).items() if not mutants]
        for t in WRITTEN
    }
    lines = [f"{name}: {', '.join(claims)}" for name, claims in never.items() if claims]
    count = sum(map(len, never.values()))
    assert not lines, f"{count} claims that no mutant turns red:\n" + "\n".join(lines)


def test_no_two_mutants_of_a_technique_make_the_same_change() -> None:
    for technique in WRITTEN:
        made = [(m.find.strip(), m.replace.strip()) for m in technique.mutants]
        assert len(made) == len(set(made)), technique.id
