"""The page's parts on settings and cost."""

from __future__ import annotations

from fastswa.report import words
from fastswa.report.findings import Findings
from fastswa.report.record import RunRecord


def settings_facts(run: RunRecord, found: Findings | None) -> list[tuple[str, str]]:
    """The settings that say most."""
    config = run.config
    facts = [("data", words.readable(config.data.source))]
    if config.data.target is not None:
        facts.append(("target", words.readable(config.data.target)))
    if found is not None:
        channels, height, width = found.shape
        kind = {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels")
        named = {"source": "for test in the source"}
        parts = [f"{words.count(number)} {named.get(part, part)}" for part, number in found.counts.items() if number]
        facts.append(("images", f"{', '.join(parts)}; {height}x{width} {kind}, {len(found.classes)} classes"))
    size = f", {words.count(found.parameters)} parameters" if found is not None else ""
    facts.append(("network", f"{config.model.name}{size}"))
    facts.append(("method", config.method.name))
    if config.method.name != "supervised":
        facts.append(("consistency weight", f"{config.method.weight:g} after {config.method.ramp:.3g} epochs"))
    batch = f"{config.batch.size}, {config.batch.labelled} of them labelled"
    facts.append(("batch", batch if config.method.name != "supervised" else f"{config.batch.size}, all labelled"))
    facts.append(("optimiser", f"{config.optimiser.name}, learning rate {config.optimiser.lr:g}"))
    schedule = config.schedule
    after = f"then cycles of {schedule.cycle:g}" if schedule.after == "cycles" else "then constant"
    facts.append(("schedule", f"{schedule.epochs} epochs: cosine for {schedule.length:g}, {after}"))
    facts.append(("seed", str(config.seed)))
    if found is not None and found.temperature != 1.0:
        facts.append(("temperature", f"{found.temperature:.3g} (its logits are divided by it)"))
    parent = run.environment.get("parent")
    if isinstance(parent, dict):
        facts.append(("forked from", words.readable(f"{parent.get('run')}, epoch {parent.get('epoch')}")))
    return facts


def cost_facts(run: RunRecord) -> list[tuple[str, str]]:
    facts = []
    if run.cost is not None:
        cost = run.cost
        facts += [
            ("time", f"{words.duration(cost.seconds)}, evaluations included"),
            ("steps", f"{words.count(cost.steps)}, {words.number(cost.steps_per_second, 3)} a second"),
            ("images taken in steps", words.count(cost.images)),
        ]
    facts.append(("device", words.readable(run.device)))
    named = {"precision": "precision", "engine": "engine", "torch": "torch", "python": "Python", "fastswa": "fastswa"}
    for key, name in named.items():
        if run.environment.get(key):
            facts.append((name, words.readable(str(run.environment[key]))))
    if run.environment.get("revision"):
        facts.append(("revision of the code", words.readable(str(run.environment["revision"]))[:12]))
    return facts
