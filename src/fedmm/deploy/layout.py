"""Where things lie in a federation's folder. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedmm.core.errors import require


@dataclass(frozen=True)
class Federation:
    """The folder of a federation on one machine: certificates, keys, sites, logs, runs."""

    folder: Path

    @property
    def certificates(self) -> Path:
        return self.folder / "certificates"

    @property
    def keys(self) -> Path:
        """Public keys, ``NAME.pub`` for each site; for sites on this machine the private ones too."""
        return self.folder / "keys"

    @property
    def coordinator(self) -> Path:
        """The key that signs the server's messages; ``coordinator.pub`` beside it goes to every site."""
        return self.folder / "coordinator"

    @property
    def invitations(self) -> Path:
        """``NAME.toml`` for each site that was invited."""
        return self.folder / "invitations"

    @property
    def sites(self) -> Path:
        return self.folder / "sites"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def flower(self) -> Path:
        """Flower's own home: its configuration and what it unpacks."""
        return self.folder / "flower"

    @property
    def app(self) -> Path:
        """The app that is handed to the SuperLink: names of modules, no code."""
        return self.folder / "app"

    @property
    def processes(self) -> Path:
        return self.folder / "processes.json"

    @property
    def about(self) -> Path:
        return self.folder / "federation.json"

    def run(self, name: str) -> Path:
        """A run's folder."""
        require(
            bool(name) and name not in (".", "..") and not set(name) & set('/\\"\n'),
            f"a run's name becomes a folder's, so it cannot be {name!r}; choose letters, digits and dashes",
        )
        return self.folder / "runs" / name
