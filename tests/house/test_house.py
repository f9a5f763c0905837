"""The rules of the house, kept by tests: sizes, unsafe calls, pins, foreign paths."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SELF = Path(__file__).relative_to(ROOT)
#: Folders that hold nothing we wrote; the last two only at the root.
FOREIGN = {".git", ".nox", "vendor", "__pycache__"}
BUILT = {"site", "dist"}
#: The launcher hears its own ranks; zero-copy transfer is compared with pickling.
#: What they read was written by their own ranks; a worker's by its own supervisor.
MAY_UNPICKLE = re.compile(
    r"atlas/(launch|ranks)\w*\.py|.*/zero_copy_transfer\.py|exemplars/elastic\.py"
)


def ours(*suffixes: str) -> list[Path]:
    """Our files with these suffixes, relative to the root."""
    found = []
    for folder, inside, files in os.walk(ROOT):
        skipped = FOREIGN | BUILT if Path(folder) == ROOT else FOREIGN
        inside[:] = sorted(set(inside) - skipped)
        inside[:] = [name for name in inside if not name.endswith("_cache")]
        paths = (Path(folder, name).relative_to(ROOT) for name in sorted(files))
        found += [p for p in paths if p.suffix in suffixes]
    return found


def exemplars() -> list[Path]:
    """The programs that readers read: exemplars/<axis>/<family>/<technique>.py."""
    paths = (ROOT / "exemplars").glob("*/*/*.py")
    return sorted(p.relative_to(ROOT) for p in paths if p.name != "__init__.py")


def read(path: Path | str) -> str:
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def calls(text: str) -> Iterator[tuple[int, str, ast.Call]]:
    """Every call in a source: its line, the dotted name called, the call."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func), node


def unsafe(path: Path, text: str) -> list[str]:
    """The calls in a source that the house forbids, as file:line: reason."""
    found = []
    for line, name, call in calls(text):
        given = {k.arg: ast.unparse(k.value) for k in call.keywords}
        module, _, function = name.rpartition(".")
        reason = ""
        if module == "yaml" and function in {"load", "load_all", "unsafe_load"}:
            reason = "yaml.safe_load reads data only"
        elif module.endswith("pickle") and function in {"load", "loads", "Unpickler"}:
            if not MAY_UNPICKLE.fullmatch(path.as_posix()):
                reason = "only the launcher and its ranks unpickle"
        elif given.get("shell", "False") != "False" or name == "os.system":
            reason = "give subprocess a list, not a shell"
        elif name == "torch.load" and given.get("weights_only") != "True":
            reason = "torch.load needs weights_only=True"
        if reason:
            found.append(f"{path}:{line}: {name}: {reason}")
    return found


def test_our_files_are_all_seen() -> None:
    seen = {path.parts[:2] for path in ours(".py")}
    assert {("atlas", "site"), ("atlas", "planner"), SELF.parts[:2]} <= seen
    assert not any("vendor" in path.parts for path in ours(".js"))


# --- sizes


def test_there_are_exemplars_to_judge() -> None:
    assert exemplars()


@pytest.mark.parametrize("path", exemplars(), ids=str)
def test_an_exemplar_says_how_to_start_it(path: Path) -> None:
    module = ".".join(path.with_suffix("").parts)
    command = rf"    torchrun --standalone --nproc-per-node \d -m {module}"
    assert any(re.fullmatch(command, line) for line in read(path).splitlines())


def test_the_readme_is_under_100_lines() -> None:
    assert len(read("README.md").splitlines()) < 100


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.md")), ids=lambda p: p.name)
def test_what_a_text_links_to_is_there(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing, f"{path.name}: {missing}"


@pytest.mark.parametrize("path", ours(".py"), ids=str)
def test_a_file_starts_by_saying_what_it_is(path: Path) -> None:
    if path.parts[0] == "notebooks" or not read(path):
        return  # a notebook starts with its title, as Markdown
    said = ast.get_docstring(ast.parse(read(path)))
    assert said, f"{path}: no docstring"
    assert re.search(r"[.?]$", said.splitlines()[0]), f"{path}: no sentence first"


# --- safety


def test_no_source_makes_an_unsafe_call() -> None:
    found = [line for path in ours(".py") for line in unsafe(path, read(path))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "yaml.load(f)",
        "pickle.loads(b)",
        "cloudpickle.load(f)",
        "subprocess.run('ls', shell=True)",
        "os.system('ls')",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
    ],
)
def test_an_unsafe_call_is_seen(text: str) -> None:
    assert unsafe(Path("atlas/x.py"), text)


def test_the_launcher_may_unpickle() -> None:
    assert not unsafe(Path("atlas/ranks.py"), "pickle.loads(b)")


# --- nothing assigns to another module's names

#: The emulated GPU has to be found where torch looks for the real one: it puts
#: its own functions in the places of torch's, in processes of its own. And torch
#: tells nobody which sends and receives were given to it as one batch, so that the
#: meter has to stand in between. The reader's script is told by torch where its ranks
#: meet, and it must not start ranks of its own on each of ours. An older torch is given
#: the names of a newer one.
MAY_PATCH = re.compile(
    r"atlas/emulate/.*|atlas/meter(/.*|\.py)|atlas/yours/place\.py|atlas/renamed\.py"
)
PROGRAMS = ("atlas", "exemplars", "notebooks")


def modules(tree: ast.Module) -> set[str]:
    """The names in a source that stand for another module, or for what is in one."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                names = [a.asname or a.name.partition(".")[0] for a in node.names]
                found |= set(names)
            case ast.arg(annotation=ast.expr() as said):
                if "ModuleType" in ast.unparse(said):
                    found.add(node.arg)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if MAKES_MODULE.match(ast.unparse(value)):
                    found.add(name)
    return found


def is_in_a_module(place: ast.expr, foreign: set[str]) -> bool:
    """Whether an attribute or an entry belongs to a module that is not this one."""
    match place:
        case ast.Name(id=name):
            return name in foreign
        case ast.Attribute(value=value):
            return is_in_a_module(value, foreign)
        case ast.Call(func=ast.Name(id="vars"), args=[of]):
            return is_in_a_module(of, foreign)
        case ast.Call():
            return bool(MAKES_MODULE.match(ast.unparse(place)))
    return False


def places(node: ast.AST) -> Iterator[ast.expr]:
    """The objects that a statement or call puts something into."""
    match node:
        case ast.Assign(targets=targets):
            for target in targets:
                several = isinstance(target, ast.Tuple | ast.List)
                for one in target.elts if several else [target]:
                    yield from written_into(one)
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            yield from written_into(target)
        case ast.Call(func=ast.Name(id="setattr"), args=[of, *_]):
            yield of
        case ast.Call(func=ast.Attribute(value=of, attr="update" | "setdefault")):
            if IS_NAMESPACE.search(ast.unparse(of)):
                yield of


def written_into(target: ast.expr) -> Iterator[ast.expr]:
    match target:
        case ast.Attribute(value=of):
            yield of
        case ast.Subscript(value=of) if IS_NAMESPACE.search(ast.unparse(of)):
            yield of


MAKES_MODULE = re.compile(r"(importlib\.)?(import_module|util\.module_from_spec)\(")
#: What holds a module's names, or the modules themselves.
IS_NAMESPACE = re.compile(r"^vars\(|__dict__$|^sys\.modules$")


def reaches_in(text: str) -> list[tuple[int, str]]:
    """The lines of a source that assign to another module's names, and how."""
    tree = ast.parse(text)
    foreign = modules(tree) | {"sys"}
    return sorted(
        (node.lineno, ast.unparse(node).splitlines()[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt | ast.expr)
        if any(is_in_a_module(place, foreign) for place in places(node))
    )


def test_nothing_assigns_to_another_modules_names() -> None:
    found = [
        f"{path}:{line}: {said}"
        for path in ours(".py")
        if path.parts[0] in PROGRAMS and not MAY_PATCH.fullmatch(path.as_posix())
        for line, said in reaches_in(read(path))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "import a\na.NAME = 1",
        "import a.b\na.b.NAME = 1",
        "from a import b\nb.Server = Watched",
        "import a\nsetattr(a, name, 1)",
        "m = importlib.import_module(x)\nm.NAME += 1",
        "def f(m: ModuleType): setattr(m, 'NAME', 1)",
        "from a import b\nb.Server, kept = Watched, b.Server",
        "import a\nvars(a).update(y)",
        "import a\na.__dict__['NAME'] = 1",
        "vars(importlib.import_module(x)).update(y)",
        "import sys\nsys.modules[name] = x",
    ],
)
def test_an_assignment_to_another_modules_name_is_seen(text: str) -> None:
    assert reaches_in(text)


@pytest.mark.parametrize(
    "text",
    [
        "import a\na = 1",
        "self.NAME = 1",
        "setattr(whole, name, 1)",
        "vars(parameter).setdefault('owner', self)",
        "import os\nos.environ['NAME'] = '1'",
    ],
)
def test_an_assignment_to_a_name_of_ones_own_is_not(text: str) -> None:
    assert not reaches_in(text)


# --- one word, one meaning


def test_every_argument_of_a_formula_is_a_word_and_every_word_is_used() -> None:
    from atlas.formulas import FORMULAS
    from atlas.formulas.symbols import symbols

    words, asked = set(symbols()), {}
    for name, formula in FORMULAS.items():
        for argument in inspect.signature(formula).parameters:
            asked.setdefault(argument, name)
    unknown = [f"{a} (of {asked[a]})" for a in sorted(asked.keys() - words)]
    assert not unknown, f"no words of symbols.yaml: {', '.join(unknown)}"
    unused = sorted(words - asked.keys())
    assert not unused, f"words of symbols.yaml that no formula takes: {unused}"


# --- actions


def test_every_action_is_pinned_by_its_commit() -> None:
    used = []
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        text = path.read_text()
        used += re.findall(r"uses:\s*(\S+.*)", text)
        assert re.search(r"^permissions: \{\}$", text, re.M), path.name
        assert "pull_request_target" not in text, path.name
        jobs = len(re.findall(r"^    runs-on:", text, re.M))
        assert len(re.findall(r"^    timeout-minutes:", text, re.M)) == jobs
    assert used
    for use in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use), use


# --- images


def test_the_devcontainer_stands_on_a_stage_of_the_dockerfile() -> None:
    made = json.loads(read(".devcontainer/devcontainer.json"))
    stages = re.findall(r"^FROM \S+ AS (\w+)", read("Dockerfile"), re.M)
    assert made["build"]["target"] in stages
    groups = re.findall(r"\[([\w,]+)\]", made["postCreateCommand"] + read("Dockerfile"))
    known = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    assert groups
    assert {g for group in groups for g in group.split(",")} <= known.keys()


def test_a_workflow_builds_both_images_and_the_devcontainers() -> None:
    text = read(".github/workflows/package.yml")
    indexes = set(re.findall(r'index: "(\S+)"', text))
    documented = set(re.findall(r"TORCH_INDEX=(https\S+)", read("Dockerfile")))
    assert indexes == documented
    assert len(indexes) == 2
    target = json.loads(read(".devcontainer/devcontainer.json"))["build"]["target"]
    assert f"docker build --target {target}" in text


# --- imports


def imports(path: Path, known: set[str]) -> set[str]:
    """The modules of ours that a file imports as it is imported itself."""
    own = module_of(path)
    found: set[str] = set()
    todo: list[ast.AST] = list(ast.parse(read(path)).body)
    while todo:
        node = todo.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                continue
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=rest):
                todo += rest
                continue
            case ast.Import(names=names):
                found |= {name.name for name in names}
            case ast.ImportFrom(module=str(module), names=names, level=0):
                inside = {f"{module}.{name.name}" for name in names}
                found |= inside & known
                if not inside <= known:  # a name of the package, not a module in it
                    found.add(module)
        todo += ast.iter_child_nodes(node)
    return (found & known) - {own}


def module_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Modules that import one another, directly or not: Tarjan's components."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return [component for component in found if len(component) > 1]


def test_no_modules_of_atlas_import_one_another() -> None:
    files = [path for path in ours(".py") if path.parts[0] == "atlas"]
    known = {module_of(path) for path in files}
    graph = {module_of(path): imports(path, known) for path in files}
    assert graph["atlas.cli"]
    assert not cycles(graph)


def test_a_cycle_of_imports_is_seen() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set[str]()}
    assert cycles(graph) == [["a", "b", "c"]]


# --- the two commands

SESSIONS = (
    "serve docs tests nightly notebooks lint types bench record mutants gpu browser"
)
SESSIONS += " audit soak package screenshots"


def test_the_sessions_are_all_there() -> None:
    sessions = {
        n.name
        for n in ast.parse(read("noxfile.py")).body
        if isinstance(n, ast.FunctionDef)
        and "session" in map(ast.unparse, n.decorator_list)
    }
    assert sessions == set(SESSIONS.split())


def test_ci_runs_the_test_command_of_the_readme_first() -> None:
    commands = re.findall(r"^    (python3 noxfile\.py -s \w+)", read("README.md"), re.M)
    assert [c.split()[-1] for c in commands] == ["serve", "tests"]
    steps = re.findall(r"^step (.+)$", read(".ci/run"), re.M)
    assert steps[0] == commands[1]
    said = [re.search(r"-s (\w+)", step) for step in steps]
    order = [match.group(1) for match in said if match]
    assert order == ["tests", "lint", "types", "notebooks", "docs", "browser"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("count", [1, 3])
def test_a_soak_repeats_what_was_noted(tmp_path: Path, count: int) -> None:
    option = re.search(r'f"(.*)\{note\}"', read("noxfile.py"))
    assert option
    note = tmp_path / "started.txt"
    # One whose name looks like a repetition's.
    file = "tests/exemplars/test_exemplars.py"
    note.write_text(f"{file}::test_claims_hold_on_gloo[zero-1-1]\n")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q"]
    command += [f"--count={count}", f"{option[1]}{note}", file]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    last = done.stdout.splitlines()[-1]
    assert re.search(rf"\b{count}/", last), done.stdout + done.stderr


# --- what must not be in the repository

TEXT = [".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".cff", ".bib", ".json"]
TEXT += [".js", ".css", ".html", ".svg", ".cpp", ".h"]
MACHINE_PATH = re.compile(r"(?<![\w.~/}-])/(?:tmp|work|root|opt)/\w")
CDN = re.compile(
    r"cdn\.|jsdelivr|unpkg\.com|cdnjs|fonts\.(?:googleapis|gstatic)|googletagmanager"
)


@pytest.mark.parametrize("pattern", [MACHINE_PATH, CDN], ids=["paths", "cdn"])
def test_no_file_names_a_path_of_a_machine_or_a_cdn(pattern: re.Pattern[str]) -> None:
    found = [
        f"{path}:{number}: {match.group()}"
        for path in ours(*TEXT)
        if path != SELF
        for number, line in enumerate(read(path).splitlines(), 1)
        if (match := pattern.search(line))
    ]
    assert not found, "\n".join(found)


def test_a_path_and_a_cdn_are_seen() -> None:
    assert MACHINE_PATH.search('open("/tmp/x")')
    assert not MACHINE_PATH.search("see docs/work/x and https://example.org/opt/x")
    assert CDN.search("https://cdn.jsdelivr.net/npm/x")


# --- dependencies


def test_every_dependency_has_its_reason() -> None:
    text = read("pyproject.toml")
    project = tomllib.loads(text)["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirement in (r for group in groups for r in group):
        reason = rf'^  "{re.escape(requirement)}",  # \w.+$'
        assert re.search(reason, text, re.M), f"{requirement}: no reason beside it"


def pins() -> dict[str, str]:
    lines = read("constraints.txt").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_every_dependency_is_pinned_to_one_plain_version() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.split(r"[\[<>=]", r)[0] for group in groups for r in group}
    assert names - {"ddl-atlas"} <= pins().keys()
    assert all(re.fullmatch(r"[0-9]+(\.[0-9]+)*", v) for v in pins().values())
    assert pins()["torch"] == "2.13.0"


def test_the_hooks_use_the_pinned_tools() -> None:
    hooks = read(".pre-commit-config.yaml")
    tools = re.findall(r"additional_dependencies: \[(\S+)==(\S+)\]", hooks)
    assert tools
    for name, version in tools:
        assert pins()[name] == version, f"{name}: the hook has {version}"


WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch was imported")
sys.meta_path.insert(0, Refuse())
import {module}
"""


@pytest.mark.parametrize(
    "module",
    [
        "atlas",
        "atlas.taxonomy",
        "atlas.planner",
        "atlas.script",
        "atlas.verdict",
        "atlas.site",
    ],
)
def test_what_the_site_needs_imports_without_torch(module: str) -> None:
    code = WITHOUT_TORCH.format(module=module)
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_the_refusal_of_torch_works() -> None:
    code = WITHOUT_TORCH.format(module="torch")
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "torch was imported" in ran.stderr
