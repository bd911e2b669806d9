"""KV events from the engines' ZMQ sockets, in a thread of its own. Mutable: everything; sockets live in the thread."""

import contextlib
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

import zmq
from zmq.utils.monitor import recv_monitor_message

from motor.coordinator.kv_query.event_sequence import Apply, AskReplay, Clear, EventSequence, Step
from motor.coordinator.kv_query.kv_events import decode_batch
from motor.coordinator.kv_query.port import EndpointKey, EventSource
from motor.coordinator.kv_query.prefix_index import PrefixIndex
from motor.coordinator.telemetry.log import get_logger

_log = get_logger(__name__)
_POLL_MILLISECONDS = 100
_MAX_MESSAGES_A_TURN = 64
_RECEIVE_HIGH_WATER = 100_000
_END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_WORK_SECONDS = 0.001
_PAUSE_SECONDS = 0.0001
"""After so much work the thread sleeps so long, so that the event loop gets the interpreter while events pour in."""

Command = Callable[["EventFeed"], None]


class _Stream:
    """The sockets of one source."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], source: EventSource, replay_seconds: float) -> None:
        self.source = source
        self.sequence = EventSequence(has_replay=source.replay_address is not None, replay_seconds=replay_seconds)
        self._context = context
        self.events: zmq.Socket[bytes] = context.socket(zmq.SUB)
        self.events.set(zmq.RCVHWM, _RECEIVE_HIGH_WATER)
        self.events.set(zmq.LINGER, 0)
        self.events.set(zmq.TCP_KEEPALIVE, 1)
        self.events.subscribe(source.topic)
        self.monitor: zmq.Socket[bytes] = self.events.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self.replay: zmq.Socket[bytes] | None = None
        try:
            if source.is_bound_here:
                self.events.bind(source.address)
            else:
                self.events.connect(source.address)
        except zmq.ZMQError:
            self.close()
            raise

    def ask_replay(self, first_sequence: int) -> None:
        """Ask on a fresh socket, so that late answers to an earlier question can't be taken for this one's."""
        self.end_replay()
        self.replay = self._context.socket(zmq.DEALER)
        self.replay.set(zmq.LINGER, 0)
        self.replay.set(zmq.RCVHWM, _RECEIVE_HIGH_WATER)
        self.replay.connect(self.source.replay_address or "")
        self.replay.send_multipart((b"", first_sequence.to_bytes(8, "big")), zmq.NOBLOCK)

    def end_replay(self) -> None:
        if self.replay is not None:
            self.replay.close()
            self.replay = None

    def close(self) -> None:
        self.end_replay()
        self.events.disable_monitor()
        self.monitor.close()
        self.events.close()


class EventFeed:
    """Keeps an index up to date with what the sources publish.

    Args:
        index: Written only from the feed's thread once it runs.
        replay_seconds: How long a replay may stand still before it is given up.
        on_fault: Called in the feed's thread with a word for what went wrong, to be counted.
    """

    def __init__(
        self,
        index: PrefixIndex,
        *,
        replay_seconds: float = 2.0,
        on_fault: Callable[[str], None] = lambda kind: None,
    ) -> None:
        self._index = index
        self._replay_seconds = replay_seconds
        self._on_fault = on_fault
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._wake_address = f"inproc://motor-kv-events-{id(self)}"
        self._wake_lock = threading.Lock()
        self._waker: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        self._waker.bind(self._wake_address)
        self._streams: dict[EndpointKey, _Stream] = {}
        self._poller = zmq.Poller()
        self._is_closing = False
        self._pause_due_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="motor-kv-events", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread and close all sockets."""
        if self._thread.ident is None:
            self._commands.put(EventFeed._end)
            self._run()
        else:
            self._send(EventFeed._end)
            self._thread.join()
        self._waker.close(0)
        self._context.term()

    def add(self, source: EventSource) -> None:
        """Follow a source; one of the same endpoint is replaced. A bad address is counted and logged."""
        self._send(lambda feed: feed._add(source))

    def remove(self, endpoint: EndpointKey) -> None:
        """Leave a source and forget the endpoint's blocks."""
        self._send(lambda feed: feed._remove(endpoint))

    def _send(self, command: Command) -> None:
        self._commands.put(command)
        with self._wake_lock, contextlib.suppress(zmq.Again):  # full: it will wake up anyway
            self._waker.send(b"", zmq.NOBLOCK)

    def _end(self) -> None:
        self._is_closing = True

    def _run(self) -> None:
        wake: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        wake.connect(self._wake_address)
        self._poller.register(wake, zmq.POLLIN)
        try:
            while not self._is_closing:
                ready = dict(self._poller.poll(_POLL_MILLISECONDS))
                if wake in ready:
                    wake.recv()
                self._obey()
                self._pause_due_seconds = time.monotonic() + _WORK_SECONDS
                for stream in list(self._streams.values()):
                    self._serve(stream, ready)
        finally:
            for endpoint in list(self._streams):
                self._remove(endpoint)
            wake.close(0)

    def _obey(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._commands.get_nowait()(self)

    def _serve(self, stream: _Stream, ready: dict[object, int]) -> None:
        if stream.monitor in ready:
            recv_monitor_message(stream.monitor)
            self._do(stream, stream.sequence.connected(time.monotonic()))
        if stream.replay is not None and stream.replay in ready:
            self._read_replay(stream)
        if stream.events in ready:
            self._read_events(stream)
        self._do(stream, stream.sequence.tick(time.monotonic()))

    def _read_events(self, stream: _Stream) -> None:
        with contextlib.suppress(zmq.Again):
            for _ in range(_MAX_MESSAGES_A_TURN):
                frames = stream.events.recv_multipart(zmq.NOBLOCK)
                if len(frames) != 3 or len(frames[1]) != 8:
                    self._on_fault("malformed")
                    continue
                self._take(stream, stream.sequence.received, frames[1], frames[2])

    def _read_replay(self, stream: _Stream) -> None:
        with contextlib.suppress(zmq.Again):
            for _ in range(_MAX_MESSAGES_A_TURN):
                if stream.replay is None:
                    return
                frames = stream.replay.recv_multipart(zmq.NOBLOCK)
                if len(frames) != 4 or len(frames[2]) != 8:
                    self._on_fault("malformed")
                elif frames[2] == _END_OF_REPLAY:
                    self._do(stream, stream.sequence.replay_ended(time.monotonic()))
                else:
                    self._take(stream, stream.sequence.replayed, frames[2], frames[3])

    def _take(self, stream: _Stream, receive: Callable[..., list[Step]], number: bytes, payload: bytes) -> None:
        now_seconds = time.monotonic()
        try:
            batch = decode_batch(payload)
        except ValueError:
            self._on_fault("malformed")  # its number is missing from the sequence, so that it counts as lost
            return
        if batch.num_unknown:
            self._on_fault("unknown_event")
        self._do(stream, receive(int.from_bytes(number, "big"), batch, now_seconds))
        if now_seconds > self._pause_due_seconds:
            time.sleep(_PAUSE_SECONDS)
            self._pause_due_seconds = time.monotonic() + _WORK_SECONDS

    def _do(self, stream: _Stream, steps: list[Step]) -> None:
        endpoint = stream.source.endpoint
        for step in steps:
            match step:
                case Apply(batch):
                    for event in batch.events:
                        self._index.apply(endpoint, event)
                case Clear(reason):
                    _log.info("kv_events.cleared", instance=endpoint.instance_id, reason=reason)
                    self._on_fault("cleared")
                    self._index.clear(endpoint)
                case AskReplay(first_sequence):
                    self._ask_replay(stream, first_sequence)
        if stream.replay is not None and not stream.sequence.is_replaying:
            self._poller.unregister(stream.replay)
            stream.end_replay()

    def _ask_replay(self, stream: _Stream, first_sequence: int) -> None:
        if stream.replay is not None:
            self._poller.unregister(stream.replay)
        stream.ask_replay(first_sequence)
        if stream.replay is not None:
            self._poller.register(stream.replay, zmq.POLLIN)

    def _add(self, source: EventSource) -> None:
        self._remove(source.endpoint)
        try:
            stream = _Stream(self._context, source, self._replay_seconds)
        except zmq.ZMQError as error:
            _log.warning("kv_events.bad_address", instance=source.endpoint.instance_id, error=str(error))
            self._on_fault("bad_address")
            return
        self._index.add_endpoint(source.endpoint, source.model)
        self._streams[source.endpoint] = stream
        self._poller.register(stream.events, zmq.POLLIN)
        self._poller.register(stream.monitor, zmq.POLLIN)

    def _remove(self, endpoint: EndpointKey) -> None:
        stream = self._streams.pop(endpoint, None)
        if stream is None:
            return
        for socket in (stream.events, stream.monitor, stream.replay):
            if socket is not None:
                self._poller.unregister(socket)
        stream.close()
        self._index.remove_endpoint(endpoint)
