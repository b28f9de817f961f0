"""Ranks that are threads of one process, so that what ranks do together can be tested without MPI."""

from __future__ import annotations

import pickle
import threading
import time
from itertools import product
from queue import Empty, Queue

import numpy as np

from ctmc.ranks import MPIRanks


class _Request:
    def __init__(self, finish=lambda: None):
        self._finish = finish

    @staticmethod
    def Waitall(requests):  # noqa: N802  # the name that mpi4py has
        for request in requests:
            request._finish()


class _Communicator:
    """The part of a communicator of mpi4py that the project uses for numbers."""

    def __init__(self, rank, world):
        self._rank, self._world = rank, world

    def Get_rank(self):  # noqa: N802
        return self._rank

    def Get_size(self):  # noqa: N802
        return self._world.count

    def allgather(self, value):
        return self._world.exchange(self._rank, value)

    def Allgather(self, own, found):  # noqa: N802
        found[:] = np.array(self._world.exchange(self._rank, np.array(own))).reshape(found.shape)

    def send(self, value, rank):
        self._world.letters[self._rank, rank].put(pickle.dumps(value))

    def recv(self, source):
        return pickle.loads(self._world.letter(source, self._rank))

    def alltoall(self, values):
        return [row[self._rank] for row in self._world.exchange(self._rank, values)]

    def Isend(self, elements, rank):  # noqa: N802
        self._world.boxes[self._rank, rank].put(np.array(elements))
        return _Request()

    def Irecv(self, elements, rank):  # noqa: N802
        def finish():
            elements[:] = self._world.boxes[rank, self._rank].get(timeout=60)

        return _Request(finish)


class _World:
    def __init__(self, count):
        self.count = count
        # all of them beforehand: two ranks that make the same one at once would each have their own
        pairs = list(product(range(count), repeat=2))
        self.boxes = {pair: Queue() for pair in pairs}
        self.letters = {pair: Queue() for pair in pairs}
        self._barrier = threading.Barrier(count)
        self._values = [None] * count

    def exchange(self, rank, value):
        self._values[rank] = value
        self._barrier.wait(timeout=60)
        found = list(self._values)
        self._barrier.wait(timeout=60)
        return found

    def letter(self, source, rank):
        """Wait for what another rank sends, as long as all are well."""
        for _ in range(6000):
            try:
                return self.letters[source, rank].get_nowait()
            except Empty:
                if self._barrier.broken:
                    raise threading.BrokenBarrierError from None
                time.sleep(0.01)
        raise TimeoutError

    def abort(self):
        self._barrier.abort()


def on_ranks(count, work):
    """Return what `work(ranks)` returns on each of so many ranks; the first error of any is raised."""
    world = _World(count)
    found, errors = [None] * count, []

    def run(rank):
        try:
            found[rank] = work(MPIRanks(_Communicator(rank, world)))
        except BaseException as error:
            errors.append(error)
            world.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
    assert not any(box.qsize() for box in (*world.boxes.values(), *world.letters.values())), (
        "something was sent to nobody"
    )
    return found
