"""What crosses between an attack's process and the evaluator's: JSON and tensors in frames."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Mapping
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

_SIZES = struct.Struct(">IQ")
MOST_HEAD, MOST_BODY = 1 << 24, 1 << 36
"""Longest JSON text and longest tensors of a frame (bytes)."""

Head = dict[str, Any]
Frame = tuple[Head, dict[str, Tensor]]


class BrokenLine(Exception):
    """The other side sent something that is no frame."""


class Line:
    """One end of the line; threads may send and ask at the same time."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lock = threading.Lock()

    def send(self, head: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> None:
        """Send one frame; tensors are copied to the CPU."""
        with self._lock:
            self._send(head, tensors or {})

    def ask(self, head: Mapping[str, Any]) -> Frame:
        """Send one frame and wait for its answer.

        Raises:
            BrokenLine: the other side is gone.
        """
        with self._lock:
            self._send(head, {})
            answer = self.receive()
        if answer is None:
            raise BrokenLine("the other side is gone")
        return answer

    def receive(self) -> Frame | None:
        """Wait for a frame; None when the other side is gone.

        Raises:
            BrokenLine: what came is no frame.
        """
        sizes = self._read_bytes(_SIZES.size)
        if sizes is None:
            return None
        head_size, body_size = _SIZES.unpack(sizes)
        if head_size > MOST_HEAD or body_size > MOST_BODY:
            raise BrokenLine(f"a frame of {head_size} and {body_size} bytes")
        text, body = self._read_bytes(head_size), self._read_bytes(body_size)
        if text is None or body is None:
            return None
        try:
            head = json.loads(text)
            tensors = safetensors.torch.load(bytes(body)) if body_size else {}
        except (ValueError, RecursionError, SafetensorError, RuntimeError) as error:
            raise BrokenLine(f"{type(error).__name__}: {error}") from None
        if not isinstance(head, dict):
            raise BrokenLine(f"a frame that begins with a {type(head).__name__}")
        return head, tensors

    def close(self) -> None:
        """Hang up."""
        self._end.close()

    def _send(self, head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        text = json.dumps(head).encode()
        plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
        body = safetensors.torch.save(plain) if plain else b""
        self._end.sendall(_SIZES.pack(len(text), len(body)) + text)
        if body:
            self._end.sendall(body)

    def _read_bytes(self, size: int) -> bytearray | None:
        out = bytearray()
        while len(out) < size:
            try:
                part = self._end.recv(min(1 << 20, size - len(out)))
            except ConnectionError:
                return None
            if not part:
                return None
            out += part
        return out
