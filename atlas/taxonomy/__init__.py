"""The taxonomy, read from taxonomy/ into frozen types, every problem found at once.

    from atlas import taxonomy
    atlas = taxonomy.load()
    atlas.techniques["ring-all-reduce"].claims

A problem is one line, `file:line:column: what: expected`. Where a system stands on
the axes is this project's own classification, made along the surveys' dimensions;
each cell carries its source, and says whether that source was read.

    python -m atlas.taxonomy            check the taxonomy
    python -m atlas.taxonomy --schema   and write taxonomy/schema/*.json for editors
"""

from atlas.taxonomy.kinds import (
    Ambiguity,
    Answer,
    Atlas,
    Attribution,
    Axis,
    Bug,
    Cell,
    Choose,
    Claim,
    Comparison,
    Concept,
    Crosswalk,
    Facet,
    Fact,
    Family,
    Holds,
    Leaf,
    Mutant,
    OptimizerLocation,
    Paper,
    Parallelism,
    Plan,
    Production,
    Quantity,
    Question,
    Ranks,
    Relation,
    Seen,
    Sighting,
    Survey,
    System,
    Technique,
    Term,
    Topology,
    Use,
    Word,
)
from atlas.taxonomy.loader import (
    PROGRAMS,
    TaxonomyError,
    find_root,
    installed,
    load,
    technique,
)

__all__ = [
    "PROGRAMS",
    "Ambiguity",
    "Answer",
    "Atlas",
    "Attribution",
    "Axis",
    "Bug",
    "Cell",
    "Choose",
    "Claim",
    "Comparison",
    "Concept",
    "Crosswalk",
    "Facet",
    "Fact",
    "Family",
    "Holds",
    "Leaf",
    "Mutant",
    "OptimizerLocation",
    "Paper",
    "Parallelism",
    "Plan",
    "Production",
    "Quantity",
    "Question",
    "Ranks",
    "Relation",
    "Seen",
    "Sighting",
    "Survey",
    "System",
    "TaxonomyError",
    "Technique",
    "Term",
    "Topology",
    "Use",
    "Word",
    "find_root",
    "installed",
    "load",
    "technique",
]
