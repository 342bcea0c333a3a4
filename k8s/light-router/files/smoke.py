"""Asks a running Light Router for one decision: `smoke.py URL`, the key in API_KEYS as the server's own secret has it.

Exits 0 where it is ready and its answer is a distribution over what was offered and none.
"""

import json
import os
import sys
import urllib.request

TIMEOUT_S = 60
QUESTION = {
    "query": "Do I need an umbrella in Lisbon tomorrow?",
    "candidates": [
        {"id": "weather", "name": "get_forecast", "description": "Weather forecast for a city and a day"},
        {"id": "mail", "name": "send_mail", "description": "Send an e-mail"},
    ],
}


def ask(url: str, body: object = None) -> dict:
    """One answer. Raises URLError where there is none, or its status is no success."""
    headers = {"content-type": "application/json"}
    keys = json.loads(os.environ.get("API_KEYS") or "[]")
    if keys:
        headers["authorization"] = f"Bearer {keys[0]}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
        return json.load(answer)


def main(url: str) -> None:
    """Raises SystemExit where an answer is not what was asked for."""
    ready = ask(f"{url}/health/ready")
    answer = ask(f"{url}/v1/route", QUESTION)
    total = answer["none_probability"] + sum(ranked["probability"] for ranked in answer["ranking"])
    offered = {candidate["id"] for candidate in QUESTION["candidates"]}
    if {ranked["id"] for ranked in answer["ranking"]} != offered or abs(total - 1) > 1e-3:
        raise SystemExit(f"the answer is no distribution over what was offered: {answer}")
    print(ready["reason"], "-", answer["model"], "decided", answer["decision"])  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
