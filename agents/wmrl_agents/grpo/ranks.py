"""The processes of one run: what ``torchrun`` started, or one process alone.

Rank 0 leads. It alone draws tasks, holds conversations, executes, asks the world model, scores, steps the
optimiser and writes the run; so there is one generator, one pool of pairs, one run directory, and nothing of
all that to keep in step. The other ranks wait for its orders, and there are only a few of them (see
`Learners`): sample these prompts, add up your share of the gradient, take these weights.

Orders travel as Python objects over gloo, tensors over the backend of their device (gloo, or NCCL on GPUs).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
from torch import distributed

__all__ = ["Ranks"]

# An order may be long in coming: executions run meanwhile, and evaluations. Who dies is noticed at once.
_PATIENCE = timedelta(days=7)


class Ranks:
    """This process among those of its run.

    Attributes:
        rank: Its number; 0 leads.
        size: Number of processes.
    """

    def __init__(self) -> None:
        """Be one of the processes that have met, or alone where none have."""
        self.rank, self.size = 0, 1
        if distributed.is_available() and distributed.is_initialized():
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    @classmethod
    def join(cls) -> Ranks:
        """Meet the other processes where ``torchrun`` has started some; else be alone.

        On GPUs each process takes the one with its local rank, which ``cuda`` means from then on.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) < 2:
            return cls()
        backend = "gloo"
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            backend = "cpu:gloo,cuda:nccl"
        distributed.init_process_group(backend, timeout=_PATIENCE)
        return cls()

    @property
    def leads(self) -> bool:
        """Whether this process gives the orders."""
        return self.rank == 0

    def tell(self, order: Any) -> None:
        """Give every other rank the same object; only rank 0 does."""
        if self.size > 1:
            distributed.broadcast_object_list([order], src=0, device=torch.device("cpu"))

    def hear(self) -> Any:
        """Wait for what rank 0 tells."""
        received = [None]
        distributed.broadcast_object_list(received, src=0, device=torch.device("cpu"))
        return received[0]

    def gather(self, part: Any) -> list[Any]:
        """Each rank's object, in their order, on rank 0; an empty list on the others. All ranks call it."""
        if self.size == 1:
            return [part]
        parts: list[Any] | None = [None] * self.size if self.leads else None
        distributed.gather_object(part, parts, dst=0)
        return parts or []

    def add_up(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Leave the sum of all ranks' gradients on rank 0, and none on the others. All ranks call it."""
        if self.size == 1:
            return
        for parameter in parameters:
            # A rank without a share has none, and none is not a tensor that can be sent.
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            distributed.reduce(gradient, dst=0, op=distributed.ReduceOp.SUM)
            parameter.grad = gradient if self.leads else None

    def copy(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Give every rank the parameters of rank 0. All ranks call it."""
        if self.size == 1:
            return
        for parameter in parameters:
            values = parameter.detach().clone()
            distributed.broadcast(values, src=0)
            if not self.leads:
                with torch.no_grad():
                    parameter.copy_(values)  # in place, which the parameter's version counts

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        """Part; rank 0 first tells the others to end, however it came to its own end."""
        if self.size == 1:
            return
        # One of them may be gone, which is then the error on its way up. Or it has heard that this is the
        # end, and went faster than the word was sent. The group's threads must end all the same: a process
        # that exits with them is aborted.
        with suppress(RuntimeError):
            if self.leads:
                self.tell(("end",))
        with suppress(RuntimeError):
            distributed.destroy_process_group()
