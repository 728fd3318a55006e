"""Try a run on a local page: fill masks, or see predictions with the evidence of each word."""

from __future__ import annotations

from lmtransfer.config.settings import ServeSettings
from lmtransfer.errors import ConfigError
from lmtransfer.inference.serving.app import make_app, serve
from lmtransfer.inference.serving.guard import listen, resolve_address
from lmtransfer.inference.serving.served import open_served_run
from lmtransfer.runs.training_setup import eager_hardware
from lmtransfer.system import ranks
from lmtransfer.system.console import Console
from lmtransfer.system.optional import install_hint


def run(settings: ServeSettings) -> None:
    """Serve the run until Ctrl-C."""
    _check_surroundings()
    address = resolve_address(settings.host, settings.port, allow_remote=settings.allow_remote)
    console = Console(highlight=False)
    with listen(address) as listener:
        with console.status(f"loading {settings.run}"):
            served = open_served_run(
                settings.run,
                ensemble=settings.ensemble,
                evidence=settings.evidence,
                top_k=settings.top_k,
                trust=settings.trust,
                hardware=eager_hardware(settings.hardware),
            )
        app = make_app(served, address=address, max_bytes=settings.max_bytes, max_seconds=settings.max_seconds)
        host = f"[{address.host}]" if ":" in address.host else address.host
        url = f"http://{host}:{listener.getsockname()[1]}"

        def on_start() -> None:
            if not address.is_local:
                warning = f"warning: anyone who can reach {address.host} can use this page; it has no password"
                console.print(warning, markup=False, soft_wrap=True)
            console.print(f"{served.name} ({served.kind}): {url}", markup=False, soft_wrap=True)
            console.print(f"as JSON: POST {url}/api/answer   end: Ctrl-C", markup=False, soft_wrap=True)

        serve(app, listener, on_start=on_start)
    console.print("stopped")


def _check_surroundings() -> None:
    problems = [f"serve: {reason}" for package in ("fastapi", "uvicorn") if (reason := install_hint(package))][:1]
    if ranks.world_size() > 1:
        problems.append("serve runs in one process: start it without torchrun")
    if problems:
        raise ConfigError(problems)
