import pytest
from tests.cases.manifests import shipped_set

from gemmill.library.config.fields import fields_of
from gemmill.library.manifest.kernelset import KernelSet
from gemmill.library.manifest.load import TypeFilter, shipped_manifests, shipped_sets

BF16 = TypeFilter(frozenset({"bf16"}))


@pytest.mark.parametrize(
    ("item", "defaults", "wanted"),
    [
        ({}, {"a": {"dtype": "bf16"}, "b": {"dtype": "bf16"}}, True),
        ({"a": {"major": "k"}}, {"a": {"dtype": "bf16"}, "b": {"dtype": "bf16"}}, True),
        ({"a": {"dtype": "f16"}}, {"a": {"dtype": "bf16"}, "b": {"dtype": "bf16"}}, False),
        ({"a": {"dtype": ["f16", "bf16"]}}, {"b": {"dtype": "bf16"}}, True),
        ({"a": [{"dtype": "f16"}, {"major": "k"}]}, {"a": {"dtype": "bf16"}, "b": {"dtype": "bf16"}}, True),
        ({"a": [{"dtype": "f16"}, {"dtype": "s8"}]}, {"a": {"dtype": "bf16"}, "b": {"dtype": "bf16"}}, False),
        ({}, {"a": {"dtype": "bf16"}, "b": {"dtype": "e4m3"}}, False),
    ],
)
def test_a_set_is_wanted_where_it_may_have_the_types(item: object, defaults: object, wanted: bool) -> None:
    assert BF16.within(defaults).has(item) == wanted


def test_the_defaults_of_an_heir_go_before_those_of_what_it_extends() -> None:
    half, brain = ({"a": {"dtype": name}, "b": {"dtype": name}} for name in ("f16", "bf16"))
    assert BF16.within(brain).within(half).has({})
    assert not BF16.within(half).within(brain).has({})


@pytest.mark.slow
@pytest.mark.parametrize("types", [("bf16",), ("f16", "s8"), ("e4m3", "e5m2"), ("bf16", "u4"), ("f32", "tf32")])
def test_no_kernel_of_wanted_types_is_left_out(types: tuple[str, ...]) -> None:
    where = f"a.dtype in {[*types]} and b.dtype in {[*types]}"

    def found(kernel_set: KernelSet) -> list[object]:
        if not kernel_set.sets or not kernel_set.count(where=where).legal:
            return []
        return [fields_of(config) for config in kernel_set.expand(where=where)]

    read = [*shipped_sets(types)]
    assert [found(own) for own in read] == [found(shipped_set(name)) for name in shipped_manifests()]
    assert sum(len(own.sets) for own in read) < sum(len(shipped_set(name).sets) for name in shipped_manifests())
