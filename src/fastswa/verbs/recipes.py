"""`fastswa recipes`: list or show."""

from __future__ import annotations

import json

from fastswa.arguments import COMMON, Arguments, Verb


def run(arguments: Arguments) -> int:
    from fastswa.layers import recipe_names, recipe_text

    if arguments.targets:
        print(recipe_text(arguments.target("recipe")), end="")
        return 0
    summaries = {name: recipe_text(name).splitlines()[0].lstrip("# ") for name in recipe_names()}
    if "--json" in arguments:
        print(json.dumps(summaries))
    else:
        width = max(map(len, summaries))
        for name, summary in summaries.items():
            print(f"{name:<{width}}  {summary}")
    return 0


VERB = Verb(run, "recipes [NAME]", "list the recipes, or show one", {**COMMON})
