"""What a check of a run found, in words."""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: its name, what was seen, and what to try."""

    name: str
    seen: str
    advice: str

    def __str__(self) -> str:
        """Two lines."""
        return f"{self.name}: {self.seen}\n    try: {self.advice}"


@dataclass(frozen=True)
class CheckReport:
    """The findings of `Result.check()`, none for a healthy run, and the numbers they were read from."""

    findings: tuple[Finding, ...]
    numbers: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What could not be looked at, and why."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def names(self) -> tuple[str, ...]:
        """The findings' names."""
        return tuple(finding.name for finding in self.findings)

    def __iter__(self) -> Iterator[Finding]:
        """The findings."""
        return iter(self.findings)

    def __len__(self) -> int:
        """How many findings there are."""
        return len(self.findings)

    def __str__(self) -> str:
        """A page for a person."""
        lines = [str(finding) for finding in self.findings] or ["nothing wrong found"]
        lines += [f"note: {note}" for note in self.notes]
        if self.numbers:
            lines.append("numbers: " + ", ".join(f"{name} {value:.3g}" for name, value in self.numbers.items()))
        return "\n".join(lines)

    __repr__ = __str__
