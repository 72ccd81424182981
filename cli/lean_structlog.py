"""structlog without rich, which structlog imports for tracebacks that Sidetier does not print.

rich takes 4 MB of the sidecar's memory. A command that draws tables imports rich itself.
"""

import sys

if "rich" in sys.modules:
    import structlog
else:
    sys.modules["rich"] = None  # type: ignore[assignment]  # `import rich` raises ImportError
    try:
        import structlog
    finally:
        del sys.modules["rich"]

__all__ = ["structlog"]
