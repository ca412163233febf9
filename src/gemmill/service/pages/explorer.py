"""The explorer: what the selector, the roofline, explain, draw and the emitter say about the problems of a model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gemmill.emitters.emit import emit
from gemmill.library.arch import DEFAULT_GPU, GPUS, Gpu
from gemmill.library.bits import ANY, BITS, fault_of
from gemmill.library.errors import ProblemError, RecordError
from gemmill.library.legality.explanation import fields_in_words, resources_of
from gemmill.library.models.problems import TOKENS, Deployment, tokens_of
from gemmill.library.models.quantization import QuantizationName
from gemmill.library.models.source import CONFIG, parsed_config
from gemmill.library.problem import REGIMES, Regime
from gemmill.library.wording import one_of
from gemmill.profiler.sweep.shape_suites import shipped_suites
from gemmill.runtime.registry import Registry
from gemmill.service.bodies import malformed, read_form
from gemmill.service.pages.explored_rows import COLUMNS, Row, Totals, as_csv, in_order
from gemmill.service.pages.problem_lists import MOST_BYTES, MOST_PROBLEMS, Entry, ProblemList
from gemmill.service.pages.rendering import facts, rendered
from gemmill.service.pages.roofline_chart import Roofline
from gemmill.service.refusal import Refusal
from gemmill.service.service_options import URL_BYTES
from gemmill.service.tokens import Caller

if TYPE_CHECKING:
    from gemmill.service.service import Service

_PATH = "/explorer"
_DTYPES = ("", "bf16", "f16", "f32")
_SECONDS = 20.0
"""Time of a page in which kernels are selected."""
_MOST_GPUS = 1024
"""Most GPUs that share a model."""
_LINK_BYTES = URL_BYTES - 1024
"""Maximum length of a link, less than that of a URL by the address of the server."""
_SETTINGS: Mapping[str, str] = {"gpu": DEFAULT_GPU.name, "objective": "sustained", "bits": ANY}
"""Parameters of a selection, with their defaults."""
_FORM: Mapping[str, str] = {
    "config": "",
    "tokens": ",".join(map(str, TOKENS)),
    "tp": "1",
    "ep": "1",
    "quantization": "config",
    "dtype": "",
}
"""Fields of the form for a config, with their defaults; `gemmill model` has options of the same names."""


@dataclass(frozen=True)
class State:
    """What a page shows: all that its address says."""

    problems: ProblemList
    gpu: Gpu
    objective: Regime = "sustained"
    bits: str = ANY
    at: int = 1
    """Number of the pass that is shown, from 1."""
    order: str = ""
    """The column that rows are sorted by."""
    show: int = 0
    """Number of the problem whose kernel is shown; 0: none."""

    @classmethod
    def of(cls, service: Service, problems: ProblemList, parameters: Mapping[str, str]) -> State:
        """The state of a page; Refusal if a parameter is invalid."""
        given = {name: parameters.get(name, default)[:100] for name, default in _SETTINGS.items()}
        objective = next((regime for regime in REGIMES if regime == given["objective"]), None)
        if objective is None:
            raise malformed(f"objective is {given['objective']!r}; it must be {one_of([*map(repr, REGIMES)])}")
        if fault := fault_of(given["bits"]):
            raise malformed(fault)
        at, show = (_number(parameters.get(name, "")) for name in ("pass", "show"))
        at = min(max(1, at), max(1, len(problems.passes)))
        show = show if problems.passes and show <= len(problems.passes[at - 1].entries) else 0
        order = parameters.get("sort", "")[:20]
        return cls(problems, service.requested_problems.gpu(given["gpu"]), objective, given["bits"], at, order, show)

    def link(self, path: str = _PATH, **changes: Any) -> str:
        """The address of the page with some members changed."""
        to = replace(self, **changes)
        parameters = {"gpu": to.gpu.name, "objective": to.objective, "bits": to.bits}
        parameters = {name: value for name, value in parameters.items() if value != _SETTINGS[name]}
        parameters |= {"pass": str(to.at)} if to.at > 1 else {}
        parameters |= {"sort": to.order} if to.order else {}
        parameters |= {"show": str(to.show)} if to.show else {}
        return f"{path}?{urlencode(to.problems.parameters | parameters)}"

    def sorted_by(self, column: str) -> str:
        """The address of the page sorted by a column, or in the other direction if it is sorted by it."""
        orders = (f"-{column}", column) if COLUMNS[column].is_number else (column, f"-{column}")
        return self.link(order=orders[self.order == orders[0]])


async def explorer(service: Service, request: Request, _: Caller) -> Response:
    """The page for the problems in its address."""
    parameters = dict(request.query_params)
    try:
        state = await _state(service, request)
    except Refusal as refusal:
        return _page(parameters, refusal.message)
    given = parameters | {"problems": str(state.problems), "gpu": state.gpu.name}
    if not state.problems.passes:
        return _page(given, state=state)
    passes = await _selected(service, state)
    rows = passes[state.at - 1][1]
    totals = Totals(rows)
    content: dict[str, Any] = {"rows": in_order(rows, state.order), "totals": totals, "columns": COLUMNS}
    content |= {"passes": [(name, Totals(found).us) for name, found in passes], "chart": Roofline.of(totals)}
    if state.show:
        content["shown"] = await _shown(service, rows[state.show - 1])
    return _page(given, state=state, **content)


async def post_explorer(service: Service, request: Request, _: Caller) -> Response:
    """Lead to the page for the problems of a form, or of the config in it, which the server does not keep."""
    form = await read_form(request)
    try:
        state = await service.resolver.in_thread(lambda: State.of(service, _listed(form), form))
        if (size := len(str(state.problems).encode())) > MOST_BYTES:
            raise malformed(f"the list has {size:,} bytes; it can have at most {MOST_BYTES:,}; split it")
        if len(link := state.link()) > _LINK_BYTES:
            raise malformed(
                f"the link to these problems has {len(link):,} characters; it can have at most {_LINK_BYTES:,}; split "
                "the list"
            )
    except Refusal as refusal:
        return _page(form, refusal.message)
    return RedirectResponse(link, 303)


async def table(service: Service, request: Request, _: Caller) -> Response:
    """The table of all passes as CSV."""
    state = await _state(service, request)
    passes = await _selected(service, state)
    text = await service.resolver.in_thread(lambda: as_csv(passes))
    return _file(text, "text/csv", f"{state.problems.as_suite.name}.csv")


async def suite(service: Service, request: Request, _: Caller) -> Response:
    """The problems of all passes as a suite."""
    found = (await _state(service, request)).problems.as_suite
    return _file(found.as_yaml() + "\n", "application/yaml", f"{found.name}.yaml")


async def _state(service: Service, request: Request) -> State:
    parameters = dict(request.query_params)
    return await service.resolver.in_thread(
        lambda: State.of(service, ProblemList.from_parameters(parameters), parameters)
    )


def _file(text: str, kind: str, name: str) -> Response:
    return Response(text, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})


async def _selected(service: Service, state: State) -> list[tuple[str, list[Row]]]:
    """Select the kernels of all passes, first of the one that is shown. Each kernel is a task of its own, so that other
    requests go on between them."""
    registry = await service.resolver.in_thread(lambda: service.resolver.registry(state.gpu))
    until = time.monotonic() + _SECONDS
    rows: dict[int, list[Row]] = {}
    for at in sorted(range(len(state.problems.passes)), key=lambda at: at != state.at - 1):
        entries = enumerate(state.problems.passes[at].entries, 1)
        rows[at] = [await _row(service, state, registry, number, entry, until) for number, entry in entries]
    return [(each.name, rows[at]) for at, each in enumerate(state.problems.passes)]


async def _row(service: Service, state: State, registry: Registry, number: int, entry: Entry, until: float) -> Row:
    if time.monotonic() > until:
        late = f"not selected, since the selection for a page ends after {_SECONDS:.0f} s; list fewer problems"
        return Row(number, entry, state.gpu, None, late)
    try:
        choice = await service.resolver.in_thread(
            lambda: registry.select(entry.problem, None, state.bits, objective=state.objective)
        )
    except Refusal as refusal:
        return Row(number, entry, state.gpu, None, refusal.message)
    return Row(number, entry, state.gpu, choice)


async def _shown(service: Service, row: Row) -> dict[str, Any]:
    """What the page says about one problem."""
    if (choice := row.choice) is None:
        return {"row": row}
    return {
        "row": row,
        "ranking": [(choice.kernel, choice.predicted_us), *choice.runners_up],
        "tables": {
            "Fields": fields_in_words(choice.config),
            "Needs": facts(resources_of(choice.config)),
            "Arithmetic": {"class": str(choice.arithmetic), "sums": choice.arithmetic.in_words()},
        },
        "source": await service.resolver.in_thread(lambda: emit(choice.config).text),
    }


def _listed(form: Mapping[str, str]) -> ProblemList:
    """The problems of a form: those of a config, if it has one, else those in its text."""
    if "config" not in form:
        return ProblemList.from_text(form.get("problems", ""))
    words = {name: form.get(name, "").strip() or default for name, default in _FORM.items()}
    deployment = Deployment(
        tokens=tokens_of(words["tokens"]),
        tp=_gpus("--tp", words["tp"]),
        ep=_gpus("--ep", words["ep"]),
        training="training" in form,
        separate="separate" in form,
        quantization=_word("--quantization", words["quantization"], get_args(QuantizationName)),
        dtype=_word("--dtype", words["dtype"], _DTYPES) or None,
    )
    config = parsed_config((form.get("file") or form["config"]).encode(), CONFIG)
    try:
        return ProblemList.from_config(config, deployment)
    except ProblemError as error:
        raise RecordError(f"{CONFIG}: {error}") from None


def _gpus(option: str, text: str) -> int:
    if not 1 <= _number(text) <= _MOST_GPUS:
        raise ProblemError(f"{option} is {text!r:.80}; it must be a whole number from 1 to {_MOST_GPUS}")
    return int(text)


def _word(option: str, text: str, allowed: tuple[Any, ...]) -> Any:
    if text not in allowed:
        raise ProblemError(f"{option} is {text!r:.80}; it must be {one_of([*filter(None, allowed)])}")
    return text


def _number(text: str) -> int:
    """A number; 0 for another text."""
    return int(text) if text.isdecimal() and len(text) < 9 else 0


def _page(given: Mapping[str, str], error: str = "", state: State | None = None, **content: Any) -> Response:
    """The page; with an error, its forms have what was entered."""
    form = {**_SETTINGS, **_FORM, "problems": "", **given}
    if form.get("file"):
        form["config"] = form["file"]
    lists = {"gpus": [*dict.fromkeys((*GPUS, form["gpu"]))], "objectives": REGIMES, "words": BITS}
    lists |= {"suites": [*shipped_suites()], "quantizations": get_args(QuantizationName), "dtypes": _DTYPES}
    page = rendered("explorer", "Explorer", form=form, error=error, state=state, most=MOST_PROBLEMS, **lists, **content)
    page.status_code = 422 if error else 200
    return page
