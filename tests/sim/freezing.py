"""Programs of a simulation, each by itself: SIGSTOP for one of them stops its tasks, and nobody else's.

Trio has one queue of tasks that may go on. While a program is frozen, those of its tasks that come to that queue are
kept aside, in order; when it is thawed all of them go on at once, whatever has happened to them meanwhile: answers have
come, connections have broken off, deadlines have passed.

One thing is harder here than on a machine. There, a program that goes on reads what has come before it looks at the
clock; here, what came after a deadline has come too late.

What one process has once, several programs in one run would share: `be_a_program` gives each its own.
"""

from collections import deque
from contextlib import contextmanager
from contextvars import ContextVar

import trio

from llmkube.base import waiting


class _Ticks:
    """In the place of the variable of a run that has the ticks; a program's own ones come first."""

    def __init__(self, of_this_run):
        self.of_this_run, self.own = of_this_run, ContextVar("ticks of a program", default=None)

    def get(self):
        return self.own.get() or self.of_this_run.get()

    def set(self, ticks):
        self.of_this_run.set(ticks)


_ticks = waiting._run_ticks = _Ticks(waiting._run_ticks)


def be_a_program():
    """Have this task, and all that it starts, share nothing with others; return the task."""
    _ticks.own.set(waiting._Ticks())
    return trio.lowlevel.current_task()


class _Queue(deque):
    """Trio's queue of tasks that may go on, and those of frozen programs that have to wait; by their first task."""

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
    """Stop a task, and everything that it has started, for as long as the block runs; the block is somebody else's."""
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
