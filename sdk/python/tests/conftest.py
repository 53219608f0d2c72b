"""Settings of all tests: coroutine tests, the number of examples, and the path of the example adapter."""

import asyncio
import inspect
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "rooms"))

# No deadline for one example: the machine may be busy with something else. Only SDK_EXAMPLES=long looks for new examples.
for name, examples in {"quick": 25, "full": 120, "long": 2000}.items():
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=name != "long",
        database=None,
    )
settings.load_profile(os.environ.get("SDK_EXAMPLES", "quick"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a coroutine test in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
