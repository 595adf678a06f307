"""Separate programs in one simulation: SIGSTOP for one of them stops its tasks, and no others.

Trio has one queue of runnable tasks. While a program is frozen, its tasks that enter this queue are set aside in order;
when it is thawed they all run at once, whatever has happened meanwhile: responses have arrived, connections have been
aborted, deadlines have passed.

One thing is stricter than on a machine. There, a program that continues reads pending data before it checks the clock;
here, data that arrived after a deadline is too late.

State that each process has once would be shared by all programs of a run: `be_a_program` gives each its own.
"""

from collections import deque
from contextlib import contextmanager
from contextvars import ContextVar

import trio

from llmkube.base import waiting


class _Ticks:
    """Replacement of the context variable with a run's ticks: a program's own ticks take precedence."""

    def __init__(self, of_this_run):
        self.of_this_run, self.own = of_this_run, ContextVar("ticks of a program", default=None)

    def get(self):
        return self.own.get() or self.of_this_run.get()

    def set(self, ticks):
        self.of_this_run.set(ticks)


_ticks = waiting._run_ticks = _Ticks(waiting._run_ticks)


def be_a_program():
    """Isolate this task, and all tasks that it starts, from the state of others; return the task."""
    _ticks.own.set(waiting._Ticks())
    return trio.lowlevel.current_task()


class _Queue(deque):
    """Trio's queue of runnable tasks, and the waiting tasks of frozen programs by their root task."""

    def __init__(self, tasks):
        super().__init__()
        self.frozen = {}
        self.extend(tasks)

    def append(self, task):
        for root, held in self.frozen.items():
            if _is_within(task, root):
                held.append(task)
                return
        super().append(task)


def _is_within(task, root):
    while task is not None and task is not root:
        task = task.parent_nursery.parent_task if task.parent_nursery else None
    return task is root


@contextmanager
def frozen(root):
    """Stop a task and its descendants during the block, which runs in a task of another program."""
    runner = trio._core._run.GLOBAL_RUN_CONTEXT.runner
    if not isinstance(runner.runq, _Queue):
        runner.runq = _Queue(runner.runq)
    queue = runner.runq
    queue.frozen[root] = []
    ready = list(queue)
    queue.clear()
    for task in ready:
        queue.append(task)
    try:
        yield
    finally:
        queue.extend(queue.frozen.pop(root))
        if not queue.frozen:
            runner.runq = deque(queue)
