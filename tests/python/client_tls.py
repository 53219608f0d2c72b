"""HTTPS by the standard library alone: what a node with a certificate says to whom.

    python client_tls.py PORT      SSL_CERT_FILE names the certificate; exit 0 if all holds
"""

import http.client
import json
import ssl
import sys
import warnings


def asked(port: int, context: ssl.SSLContext, host: str = "localhost") -> tuple[int, dict, str]:
    connection = http.client.HTTPSConnection(host, port, timeout=30, context=context)
    connection.request("GET", "/")
    version = connection.sock.version()
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read()), version


def refused(port: int, context: ssl.SSLContext, kind: type[Exception]) -> None:
    try:
        asked(port, context)
    except kind:
        return
    raise AssertionError("the connection was made")


def main(port: int) -> int:
    for host in ("localhost", "127.0.0.1"):
        for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
            context = ssl.create_default_context()
            context.minimum_version = context.maximum_version = version
            status, said, spoken = asked(port, context, host)
            assert (status, spoken) == (200, name) and said["connect"] == "/v1/connect", (status, said, spoken)

    # Older versions are not spoken, however much a client would like to.
    old = ssl.create_default_context()
    old.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    refused(port, old, ssl.SSLError)
    # Who is not told to trust the certificate does not.
    refused(port, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLCertVerificationError)
    # A client that wants HTTP/2 or HTTP/1.1 gets the second.
    both = ssl.create_default_context()
    both.set_alpn_protocols(["h2", "http/1.1"])
    connection = http.client.HTTPSConnection("localhost", port, timeout=30, context=both)
    connection.connect()
    assert connection.sock.selected_alpn_protocol() == "http/1.1", connection.sock.selected_alpn_protocol()

    # A turn as server-sent events, on the same connection.
    body = json.dumps({"message": {"role": "user", "content": "hello over there"}, "agent_id": "echo"})
    headers = {"content-type": "application/json", "x-user-id": "ann", "idempotency-key": "m1"}
    connection.request("POST", "/v1/sessions/s1/turns", body, headers)
    answer = connection.getresponse()
    assert answer.status == 200 and answer.headers["content-type"] == "text/event-stream", answer.status
    data = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: ")]
    messages = [json.loads(line) for line in data]
    text = "".join(message["text"] for message in messages if message["type"] == "delta")
    assert text == "hello over there" and messages[-1]["type"] == "done", messages

    # HTTP without TLS is told what is spoken here.
    plain = http.client.HTTPConnection("localhost", port, timeout=30)
    plain.request("GET", "/", headers={"x-padding": "x" * 2000})
    answer = plain.getresponse()
    assert answer.status == 400 and b"https://" in answer.read(), answer.status
    print("all of it holds")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
