"""What :func:`fedgeo.federation.fit` wants of its arguments, looked at before any work is done.

An algorithm is traced once for one client and its shapes: no number is computed, and a second run with the same
algorithm and shapes traces nothing again. What is wrong is a ``ValueError``, or a ``TypeError`` where a function does
not keep the form of a state; errors of a user's own functions stay what they are, with a note of what they were given.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedgeo.federation.participation import Sampler
from fedgeo.protocol import Cohort, FedAlgorithm, FedState, Key, PyTree, Rows, Series

_ARGUMENTS = {
    "init": "key, data",
    "update": "key, server, client, data_k",
    "weight": "data_k",
    "aggregate": "server, uploads, weights, cohort",
    "sync": "server, client",
    "deploy": "server, client, data_k",
    "score": "detector, x",
    "merge": "uploads, weights",
}
_TAKEN = (
    "round",
    "client",
    "weight",
    "active",
    "quarantined",
    "counted",
)  # words of files and tables of a run


_TRACED = (
    "fit runs on the host, and was called where JAX traces; under jit or vmap use fedgeo.federation.init and "
    "fedgeo.federation.run, the program behind it"
)


def forms(tree: PyTree) -> PyTree:
    """The tree with ``jax.ShapeDtypeStruct`` for its leaves, in the dtypes that JAX gives them."""
    return jax.eval_shape(lambda same: same, tree)


def described(tree: PyTree) -> Any:
    """The tree with words such as ``float32[4, 2]`` for its leaves."""
    return jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", forms(tree))


def instances(**of: tuple[Any, type, str]) -> None:
    """Raise ValueError unless each ``name=(value, type, remedy)`` is of its type, or None."""
    for name, (value, kind, remedy) in of.items():
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{name} must be a {kind.__name__}, got {_short(value)}; {remedy}")


def single_key(key: Any) -> None:
    """Raise ValueError unless this is one typed key."""
    if isinstance(key, jax.core.Tracer):
        raise ValueError(_TRACED)
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not typed or key.shape:
        raise ValueError(f"key must be one typed key such as jax.random.key(0), got {_short(key)}")


def leading_axis(name: str, tree: PyTree) -> int:
    """K, of a tree with leaves ``(K, ...)``."""
    sizes = {jax.tree_util.keystr(path): np.shape(leaf)[:1] for path, leaf in jax.tree.leaves_with_path(tree)}
    if not sizes or len(set(sizes.values())) != 1 or () in sizes.values():
        raise ValueError(f"every leaf of {name} needs the same leading client axis (K, ...), got {sizes}")
    if isinstance(tree, Rows | Series) and np.ndim(tree.mask) == 1:
        raise ValueError(
            f"{name} is one client, with x {np.shape(tree.x)} and mask {np.shape(tree.mask)}; stack several with "
            "fedgeo.data.stack_rows or stack_series, or give the one a client axis: jax.tree.map(lambda leaf: "
            "leaf[None], data)"
        )
    number = next(iter(sizes.values()))[0]
    if not number:
        raise ValueError(f"{name} has no clients: every leaf is (0, ...); stack at least one")
    return number


def same_clients(**of: PyTree) -> None:
    """Raise ValueError unless the named trees, where they have leaves, are of equally many clients."""
    sizes = {name: leading_axis(name, tree) for name, tree in of.items() if jax.tree.leaves(tree)}
    if len(set(sizes.values())) > 1:
        raise ValueError(
            "every argument must be of the same clients (K, ...), got "
            + " and ".join(f"{name} of {size}" for name, size in sizes.items())
        )


def cohort_size(sampler: Sampler, key: Key, num_clients: int, number: int) -> int:
    """S, of a sampler that holds to what it must; looked at on one draw."""
    _hashable("sampler", sampler)
    arguments = (jax.random.fold_in(key, number), num_clients, jnp.asarray(number))
    try:
        inspect.signature(sampler).bind(*arguments)
    except TypeError as error:
        raise ValueError(f"a sampler is called with (key, K, round number): {error}") from None
    cohort = sampler(*arguments)
    wanted = "a sampler returns Cohort(index, active), integers (S,) and booleans (S,)"
    if not isinstance(cohort, Cohort):
        raise ValueError(f"{wanted}; got {_short(cohort)}")
    if any(isinstance(leaf, jax.core.Tracer) for leaf in cohort):
        raise ValueError(_TRACED)
    index, active = np.asarray(cohort.index), np.asarray(cohort.active)
    reached = active if cohort.reached is None else np.asarray(cohort.reached)
    fits = index.ndim == 1 and index.shape == active.shape == reached.shape
    if not fits or index.dtype.kind not in "iu" or active.dtype != bool or reached.dtype != bool:
        raise ValueError(f"{wanted}; got {index.dtype} {index.shape} and {active.dtype} {active.shape}")
    if len(set(index.tolist())) < len(index) or not ((index >= 0) & (index < num_clients)).all():
        raise ValueError(
            f"a sampler's ids must be distinct and below K = {num_clients}, got {index.tolist()}"
        )
    return len(index)


def algorithm(alg: Any) -> None:
    """Raise ValueError unless this is an algorithm whose functions can be called and compiled for."""
    if not isinstance(alg, FedAlgorithm):
        remedy = (
            "call the factory: a FedAlgorithm is what it returns" if callable(alg) else "see fedgeo.protocol"
        )
        raise ValueError(f"alg must be a FedAlgorithm, got {_short(alg)}; {remedy}")
    for name, function in alg._asdict().items():
        _hashable(f"{name} of the algorithm", function)


def start(alg: FedAlgorithm, init: Callable[..., FedState], key: Key, data: PyTree) -> FedState:
    """What the algorithm starts from, if it is what it must be."""
    num_clients = leading_axis("data", data)
    state = _call(alg, "init", (key, data), partial(init, alg))
    if not isinstance(state, FedState):
        raise ValueError(f"init returns FedState(server, clients), got {_short(state)}")
    if jax.tree.leaves(state.clients) and leading_axis("clients of init", state.clients) != num_clients:
        raise ValueError(
            f"init returns clients with leaves (K, ...), here K = {num_clients}, got {described(state.clients)}"
        )
    return state


def given_state(state: Any, alg: FedAlgorithm, init: Callable[..., FedState], key: Key, data: PyTree) -> None:
    """Raise ValueError unless the state has the form of what this algorithm starts from on these data."""
    instances(state=(state, FedState, "pass what fit returned first, or FedState(server, clients)"))
    num_clients = leading_axis("data", data)
    if jax.tree.leaves(state.clients) and leading_axis("state.clients", state.clients) != num_clients:
        raise ValueError(
            f"the state holds other clients than the data, which have {num_clients}; start from init"
        )
    try:
        wanted = jax.eval_shape(partial(init, alg), key, data)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
        return  # an init that works on the host; what it would return is not known without its work
    for part in ("server", "clients"):
        got, want = (described(getattr(tree, part)) for tree in (state, wanted))
        if got != want:
            raise ValueError(
                f"state.{part} is not of this algorithm on these data: got {got}, want {want}; "
                "is it of other settings?"
            )


def messages(alg: FedAlgorithm, key: Key, state: FedState, data: PyTree, size: int) -> PyTree:
    """The form of one client's upload, from an algorithm whose functions return what they must for S clients."""
    client, data_k = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), forms((state.clients, data))
    )
    return _round.eval_shape(alg, forms(key), forms(state.server), client, data_k, size=size)


@partial(jax.jit, static_argnames=("alg", "size"))
def _round(
    alg: FedAlgorithm, key: Key, server: PyTree, client: PyTree, data_k: PyTree, *, size: int
) -> PyTree:
    """One round of equal clients, traced and never run."""
    sent = _call(alg, "update", (key, server, client, data_k))
    if not isinstance(sent, tuple) or len(sent) != 3:
        raise ValueError(f"update returns (client, upload, metrics), got {_short(sent)}")
    after, upload, metrics = sent
    same_form("update", after, client)
    _scalars(metrics)
    weight = as_weight(_call(alg, "weight", (data_k,)))
    if not _is_scalar(weight):
        raise ValueError(f"weight returns one real number, the client's weight, got {described(weight)}")

    def several(tree: PyTree, count: int) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), tree)

    if alg.merge is not None:
        of_two = (several(upload, 2), jnp.zeros(2))
        merged = _call(alg, "merge", of_two)
        again = _call(alg, "merge", (several(merged, 2), jnp.zeros(2)))
        if _shapes(merged) != _shapes(upload) or described(again) != described(merged):
            raise ValueError(
                "merge returns one upload, of the structure and shapes of each, that can be merged again: "
                f"got {described(merged)} of two {described(upload)}, and {described(again)} of two of those"
            )
    cohort = Cohort(jnp.arange(size), jnp.ones(size, bool))
    uploads = several(upload, size)
    after_round = _call(alg, "aggregate", (server, uploads, several(weight, size), cohort))
    same_form("aggregate", after_round, server)
    same_form("sync", _call(alg, "sync", (server, client)), client)
    return upload


def same_form(name: str, got: PyTree, want: PyTree) -> None:
    """Raise TypeError if a function of the algorithm returns another structure, shape or dtype than it got."""
    words = described(got), described(want)
    if words[0] != words[1]:
        raise TypeError(
            f"{name} must keep structure, shapes and dtypes of the state: got {words[0]}, want {words[1]}"
        )


def as_weight(weight: Any) -> jax.Array:
    """An algorithm's weight, a Python number as a float32."""
    return jnp.asarray(weight, jnp.float32 if isinstance(weight, int | float) else None)


def _call(alg: FedAlgorithm, name: str, arguments: tuple[Any, ...], function: Any = None) -> Any:
    """What a function of the algorithm returns, or its error, which says what it was given."""
    own = getattr(alg, name)
    try:
        inspect.signature(own).bind(*arguments)
    except TypeError as error:
        raise ValueError(f"{name} of an algorithm is called with ({_ARGUMENTS[name]}): {error}") from None
    except ValueError:  # a builtin, which tells no signature
        pass
    try:
        return (own if function is None else function)(*arguments)
    except Exception as error:
        whom = "one client (is the first axis of data that of the clients?)"
        if name in ("init", "aggregate", "merge"):
            whom = "all clients"
        given = [
            f"{word} {_brief(_words(tree))}"
            for word, tree in zip(_ARGUMENTS[name].split(", "), arguments, strict=True)
            if word != "key"
        ]
        error.add_note(f"In {name} of the algorithm, called for {whom} with {', '.join(given)}")
        raise


def _scalars(metrics: Any) -> None:
    wanted = "metrics are a flat dict of scalars by name"
    if not isinstance(metrics, dict) or not all(isinstance(name, str) for name in metrics):
        raise ValueError(f"{wanted}, got {_short(metrics)}")
    for name, value in metrics.items():
        if name in _TAKEN:
            raise ValueError(f"a metric may not be called {name!r}, which the records use; rename it")
        if not isinstance(value, int | float) and not _is_scalar(value):
            raise ValueError(f"{wanted}, but {name!r} is {_brief(_words(value))}; report a scalar of it")


def _is_scalar(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    if dtype is None or np.shape(value):
        return False
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))


def _shapes(tree: PyTree) -> tuple[Any, list[tuple[int, ...]]]:
    return jax.tree.structure(tree), [np.shape(leaf) for leaf in jax.tree.leaves(tree)]


def _hashable(name: str, value: Any) -> None:
    try:
        hash(value)
    except TypeError as error:
        raise ValueError(
            f"{name} must be hashable, for programs are kept by it ({error}); pass a function, or a frozen dataclass"
        ) from None


def _words(value: Any) -> Any:
    try:
        return described(value)
    except TypeError:  # leaves that are no arrays
        return repr(value)


def _short(value: Any) -> str:
    """A value in an error: its type, and its form or itself where that is brief."""
    name = getattr(value, "__qualname__", None)
    return f"the {type(value).__name__} {name or _brief(_words(value))}"


def _brief(words: Any) -> str:
    text = str(words)
    return text if len(text) <= 300 else text[:300] + "..."
