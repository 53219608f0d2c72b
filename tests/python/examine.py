"""Runs schemathesis, without the cases that a schema cannot tell from right ones.

Version 4.32.5 makes headers of letters and digits only. Where a header's pattern needs more, it has none that
fits, and calls one right that does not. And no schema says that a header and a field must agree.
"""
import re

import schemathesis
from schemathesis.cli import schemathesis as main

PLACE = re.compile(r"\d+(-\d+){1,3}(-[a-z2-7]{8})?")


@schemathesis.hook
def filter_case(context, case):
    if not case.meta.generation.mode.is_positive:
        return True
    headers, body = case.headers or {}, case.body
    if "last-event-id" in headers and not PLACE.fullmatch(str(headers["last-event-id"])):
        return False
    message = body.get("message") if isinstance(body, dict) else None
    named = message.get("message_id") if isinstance(message, dict) else None
    return named is None or headers.get("idempotency-key", named) == named


if __name__ == "__main__":
    main()
