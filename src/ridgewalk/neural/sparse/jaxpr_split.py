"""A model's jaxpr, split at its products with given matrices, so that these can be computed outside JAX.

Inner calls are inlined; what lies between two of the products is compiled as one program.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

from ridgewalk._types import PyTree

INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")
CALLS = ("pjit", "jit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint")


def _evaluate(jaxpr: Jaxpr, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """What a jaxpr computes, inner calls inlined."""
    values: dict[Var, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        given = [read(atom) for atom in equation.invars]
        inner = next((equation.params[name] for name in INNER if name in equation.params), None)
        if equation.primitive.name in CALLS and inner is not None:
            closed = isinstance(inner, ClosedJaxpr)
            made = _evaluate(inner.jaxpr if closed else inner, inner.consts if closed else [], given)
        else:
            result = equation.primitive.bind(*given, **equation.params)
            made = list(result) if equation.primitive.multiple_results else [result]
        values.update(zip(equation.outvars, made, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


class Product(NamedTuple):
    """`dot_general` of a batch with leaf number `leaf`: which axes are summed over, and which operand is the leaf."""

    leaf: int
    batch: Any
    output: Any
    leaf_first: bool
    leaf_axis: int
    batch_axis: int

    def run(self, values: dict[Any, Any], multiply: Callable[[int, int, np.ndarray], np.ndarray]) -> None:
        """Compute the product; `multiply(leaf, axis, x)` sums over the leaf's `axis` and the last of x."""
        x = np.asarray(values[self.batch])
        y = multiply(self.leaf, self.leaf_axis, x if self.batch_axis == 1 else x.T)
        values[self.output] = y.T if self.leaf_first else y


class Segment(NamedTuple):
    """What lies between two products, compiled."""

    compiled: Callable[..., Any]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    def run(self, values: dict[Any, Any], multiply: Callable[[int, int, np.ndarray], np.ndarray]) -> None:
        """Compute it."""
        values.update(zip(self.outputs, self.compiled(*(values[var] for var in self.inputs)), strict=True))


class SplitProgram(NamedTuple):
    """The computation for inputs of one shape."""

    steps: tuple[Product | Segment, ...]
    parameters: tuple[Any, ...]
    x: Any
    output: Any

    @property
    def products(self) -> list[int]:
        """The leaves whose products are computed outside."""
        return [step.leaf for step in self.steps if isinstance(step, Product)]

    def run(self, leaves: dict[int, Any], x: Any, multiply: Callable[[int, int, np.ndarray], np.ndarray]) -> np.ndarray:
        """The model's output; `leaves` holds those that are not multiplied outside."""
        values = {self.parameters[i]: leaf for i, leaf in leaves.items()} | {self.x: x}
        for step in self.steps:
            step.run(values, multiply)
        return np.asarray(values[self.output])


def _product(equation: Any, leaves: dict[Any, int]) -> Product | None:
    """The product that an equation is, if it is one of a batch (two axes) with one of the leaves."""
    if equation.primitive.name != "dot_general":
        return None
    (summed, batched) = equation.params["dimension_numbers"]
    left, right = equation.invars
    first = left in leaves if isinstance(left, Var) else False
    leaf, batch = (left, right) if first else (right, left)
    if isinstance(leaf, Literal) or leaf not in leaves or batched != ((), ()) or len(batch.aval.shape) != 2:
        return None
    axes = [axis[0] for axis in summed]
    leaf_axis, batch_axis = (axes[0], axes[1]) if first else (axes[1], axes[0])
    return Product(leaves[leaf], batch, equation.outvars[0], first, leaf_axis, batch_axis)


def split_at_matmuls(apply: Callable[[PyTree, Any], Any], parameters: PyTree, x: Any, chosen: set[int]) -> SplitProgram:
    """Split `apply(parameters, x)`, of the given shapes, at products with the chosen leaves (of two axes).

    A leaf that is used in any other way stays inside.
    """
    closed = jax.make_jaxpr(apply)(parameters, x)
    arguments = [*jax.tree.leaves(parameters), x]
    flat = jax.make_jaxpr(lambda *given: _evaluate(closed.jaxpr, closed.consts, given))(*arguments)
    jaxpr = flat.jaxpr
    *variables, given = jaxpr.invars
    leaves = {variables[i]: i for i in chosen}
    made = {id(equation): _product(equation, leaves) for equation in jaxpr.eqns}
    for equation in jaxpr.eqns:
        if made[id(equation)] is None:
            leaves = {var: i for var, i in leaves.items() if var not in equation.invars}
    parts: list[list[Any]] = [[]]
    for equation in jaxpr.eqns:
        outside = made[id(equation)]
        if outside is not None and outside.leaf in leaves.values():
            parts += [[outside], []]
        else:
            parts[-1].append(equation)
    constants = dict(zip(jaxpr.constvars, flat.consts, strict=True))
    steps: list[Product | Segment] = []
    for i, part in enumerate(parts):
        if part and isinstance(part[0], Product):
            steps.append(part[0])
        elif part:
            steps.append(_segment(part, _read_by(parts[i + 1 :]) | set(jaxpr.outvars), constants))
    return SplitProgram(tuple(steps), tuple(variables), given, jaxpr.outvars[0])


def _read_by(parts: list[list[Any]]) -> set[Any]:
    """All variables that some parts read."""
    read: set[Any] = set()
    for step in (step for part in parts for step in part):
        atoms = [step.batch] if isinstance(step, Product) else step.invars
        read |= {atom for atom in atoms if isinstance(atom, Var)}
    return read


def _segment(equations: list[Any], wanted: set[Any], constants: dict[Any, Any]) -> Segment:
    written = [var for equation in equations for var in equation.outvars]
    read = [atom for equation in equations for atom in equation.invars if isinstance(atom, Var)]
    inputs = tuple(dict.fromkeys(var for var in read if var not in set(written) and var not in constants))
    outputs = tuple(var for var in written if var in wanted)

    def compute(*given: Any) -> tuple[Any, ...]:
        values = dict(zip(inputs, given, strict=True)) | constants
        for equation in equations:
            arguments = [atom.val if isinstance(atom, Literal) else values[atom] for atom in equation.invars]
            result = equation.primitive.bind(*arguments, **equation.params)
            made = result if equation.primitive.multiple_results else [result]
            values.update(zip(equation.outvars, made, strict=True))
        return tuple(values[var] for var in outputs)

    return Segment(jax.jit(compute), inputs, outputs)
