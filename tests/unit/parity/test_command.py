"""The suite and `motor parity` against two real HTTP servers."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from motor.parity.cases import Mode, build_case
from motor.parity.sender import Sender
from motor.parity.suite import run_suite

CASES = [
    build_case("t", {"name": "chat", "body": {"messages": []}}, {}),
    build_case("t", {"name": "alone", "body": {}, "alone": True, "modes": ["whole"]}, {}),
    build_case("t", {"name": "broken", "raw": "{", "headers": {"Content-Type": None}}, {}),
]


class RecordingServer:
    """Answers every request with the same text; mutable: `requests`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.requests: list[tuple[str | None, bytes]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append((request.headers.get("Content-Type"), body))
        if b'"stream":true' in body:
            payload = f'data: {{"choices":[{{"index":0,"text":"{self.text}"}}]}}\n\ndata: [DONE]\n\n'
            return web.Response(
                body=payload.encode(), content_type="text/event-stream", headers={"x-motor-chain": "token"}
            )
        return web.json_response({"text": self.text}, headers={"x-motor-chain": "token"})

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[str]:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(application)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            yield f"http://{host}:{port}"
        finally:
            await runner.cleanup()


async def run(native: RecordingServer, ours: RecordingServer) -> list[Any]:
    async with (
        native.listen() as native_url,
        ours.listen() as our_url,
        Sender(our_url, 10) as our_sender,
        Sender(native_url, 10) as native_sender,
    ):
        return await run_suite(CASES, our_sender, native_sender, model="tiny", num_concurrent=4)


async def test_equal_servers_are_equal_in_every_mode() -> None:
    native, ours = RecordingServer("a"), RecordingServer("a")

    results = await run(native, ours)

    assert [(result.case, result.mode, result.status) for result in results] == [
        ("t/chat", Mode.WHOLE, "equal"),
        ("t/chat", Mode.STREAM, "equal"),
        ("t/alone", Mode.WHOLE, "equal"),
        ("t/broken", Mode.VERBATIM, "equal"),
    ]
    assert {result.chain for result in results} == {"token"}
    assert [result.num_our_events for result in results] == [0, 2, 0, 0]
    assert (None, b"{") in ours.requests
    assert (None, b"{") in native.requests


async def test_both_sides_get_salts_of_their_own() -> None:
    native, ours = RecordingServer("a"), RecordingServer("a")

    await run(native, ours)

    salts = [json.loads(body)["cache_salt"] for _, body in native.requests + ours.requests if body != b"{"]
    assert len(set(salts)) == len(salts) == 6
    assert len({len(salt) for salt in salts}) == 1


async def test_other_text_is_found_in_every_mode() -> None:
    results = await run(RecordingServer("a"), RecordingServer("b"))

    assert [[difference.path for difference in result.broken] for result in results] == [
        ["text"],
        ["choices[0].text"],
        ["text"],
        ["text"],
    ]


async def test_a_server_that_is_not_there_breaks_parity() -> None:
    server = RecordingServer("a")
    async with server.listen() as url:
        pass
    async with RecordingServer("a").listen() as native_url, Sender(native_url, 10) as native, Sender(url, 10) as ours:
        results = await run_suite(CASES[:1], ours, native, model="tiny", num_concurrent=1)

    assert {(result.native_status, result.our_status, result.status) for result in results} == {(200, 0, "different")}


async def motor_parity(*arguments: str) -> tuple[int | None, str]:
    command = (sys.executable, "-c", "from motor.cli.main import app; app()", "parity", *arguments)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


@pytest.mark.parametrize(("our_text", "exit_code", "num_differences"), [("a", 0, 0), ("b", 1, 2)])
async def test_the_command_reports_and_exits(
    tmp_path: Path, our_text: str, exit_code: int, num_differences: int
) -> None:
    (tmp_path / "theme.yaml").write_text("cases: [{name: a, body: {}}]", encoding="utf-8")
    report = tmp_path / "out" / "report.json"
    report.parent.mkdir()
    async with RecordingServer("a").listen() as native, RecordingServer(our_text).listen() as ours:
        code, output = await motor_parity(
            "--coordinator", ours, "--native", native, "--corpus", str(tmp_path), "--report", str(report)
        )

    assert code == exit_code, output
    assert f"parity_cases=2 parity_differences={num_differences}" in output
    document = json.loads(report.read_text(encoding="utf-8"))
    assert (document["parity_cases"], document["parity_differences"]) == (2, num_differences)
    if num_differences:
        assert document["results"][0]["differences"] == [{"path": "text", "native": '"a"', "ours": '"b"'}]


async def test_a_pattern_without_a_case_is_an_error() -> None:
    code, output = await motor_parity("--coordinator", "http://a", "--native", "http://b", "--only", "nothing/*")

    assert code == 2
    assert "nothing/*" in output
