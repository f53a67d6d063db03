"""`fastswa table`: the paper's tables beside ours."""

from __future__ import annotations

from fastswa.arguments import COMMON, Arguments, Verb, results
from fastswa.errors import RequestError
from fastswa.verbs.results import say_unmeasured


def run(arguments: Arguments) -> int:
    from fastswa.console import say
    from fastswa.tables.render import print_table, rendered
    from fastswa.tables.table import table, table_names

    if not arguments.targets:
        raise RequestError(f"name a table; there are: {', '.join(table_names())}.")
    if "--json" in arguments and arguments.options.get("--format", "json") != "json":
        raise RequestError(f"--json and --format {arguments.options['--format']} are two forms; give one.")
    folder = results(arguments)
    sheet = table(
        arguments.target("table"),
        folder,
        labels=arguments.wholes("--labels"),
        methods=arguments.words("--methods"),
        measured_only="--measured" in arguments,
    )
    if not say_unmeasured(folder) and not sheet.rows:
        say(f"no row of {sheet.name} is measured yet.")
    form = "json" if "--json" in arguments else arguments.options.get("--format", "terminal")
    if form == "terminal":
        print_table(sheet)
    else:
        print(rendered(sheet, form), end="")
    return 0


VERB = Verb(
    run,
    "table NAME [--labels 1000,4000] [--methods A,B]",
    "one of the paper's tables with our measured figures beside it",
    {"--labels": True, "--methods": True, "--measured": False, "--format": True, "--results": True, **COMMON},
    details=(
        "NAME: cifar10-cnn, cifar10-shake-short, cifar10-shake-long, cifar100-cnn, cifar100-shake-short, soa (the\n"
        "summary), averaging-often, domain-adaptation, frontier (FixMatch and its kin, with their cost)\n"
        "or paired (their averages within the same runs).\n"
        "--format terminal|markdown|csv|json; --measured leaves out the rest; --results FOLDER (results)."
    ),
)
