"""Ways to damage a file, each as a function of the file, another file of the same artefact, and a number in [0, 1)."""

import json
import os
import shutil


def truncate(file, other, share):
    os.truncate(file, int(share * file.stat().st_size))


def empty(file, other, share):
    os.truncate(file, 0)


def extend(file, other, share):
    os.truncate(file, file.stat().st_size + 1 + int(share * 10**10))  # sparse: nothing is written


def flip(file, other, share):
    content = bytearray(file.read_bytes())
    bit = int(share * 8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def overwrite(file, other, share):
    content = bytearray(file.read_bytes())
    start = int(share * len(content))
    content[start : start + 16] = os.urandom(16)[: len(content) - start]
    file.write_bytes(content)


def swap(file, other, share):
    between = file.with_name("between")
    os.rename(file, between)
    os.rename(other, file)
    os.rename(between, other)


def copy(file, other, share):
    shutil.copyfile(other, file)


def delete(file, other, share):
    file.unlink()


def folder(file, other, share):
    file.unlink()
    file.mkdir()


def link_to_copy(file, other, share):
    os.rename(file, file.with_name("moved"))
    file.symlink_to(file.with_name("moved"))


def link_to_zeros(file, other, share):
    file.unlink()
    file.symlink_to("/dev/zero")


def dangling_link(file, other, share):
    file.unlink()
    file.symlink_to("nowhere")


def link_to_itself(file, other, share):
    file.unlink()
    file.symlink_to(file)


def fifo(file, other, share):
    file.unlink()
    os.mkfifo(file)


def unreadable_size(file, other, share):
    """The first eight bytes are the length of a safetensors header."""
    content = bytearray(file.read_bytes())
    content[:8] = (2 ** int(64 * share)).to_bytes(8, "little")[: len(content[:8])]
    file.write_bytes(content)


def nest(file, other, share):
    file.write_bytes(b"[" * (1 + int(share * 200_000)))


def inflate(file, other, share):
    """A whole number in JSON becomes absurd; in other files a header that says so."""
    content = file.read_bytes()
    try:
        found = json.loads(content)
    except ValueError:
        header = json.dumps({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()
        file.write_bytes(len(header).to_bytes(8, "little") + header)
        return
    places = list(_numbers(found))
    if not places:
        file.write_text("10000000000000")
        return
    holder, key = places[int(share * len(places))]
    holder[key] = 10**13
    file.write_text(json.dumps(found))


def retype(file, other, share):
    """A value in JSON becomes one of another type."""
    try:
        found = json.loads(file.read_bytes())
    except ValueError:
        found = None
    places = list(_values(found))
    if not places:
        file.write_text("null")
        return
    holder, key = places[int(share * len(places))]
    holder[key] = [None, "text", -1, 1.5, [], {}, True][int(share * 7919) % 7]
    file.write_text(json.dumps(found))


def _values(value):
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _values(value[key])


def _numbers(value):
    return ((holder, key) for holder, key in _values(value) if type(holder[key]) is int)


ALL = (
    truncate,
    empty,
    extend,
    flip,
    overwrite,
    swap,
    copy,
    delete,
    folder,
    link_to_copy,
    link_to_zeros,
    dangling_link,
    link_to_itself,
    fifo,
    unreadable_size,
    nest,
    inflate,
    retype,
)
