"""Values that are nested deeper than a decoder follows are left empty."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.api.core import ConfigMap
from koordlet.api.encoding import nesting
from koordlet.api.encoding.nesting import decode_any_depth, shallow
from koordlet.api.encoding.wire import json_decoder

JSON = st.recursive(
    st.integers() | st.text('a"\\{}[]\n'), lambda inner: st.lists(inner) | st.dictionaries(st.text('"\\{}[]'), inner)
)


def pruned(value: Any, levels: int) -> Any:
    if isinstance(value, dict):
        return {key: pruned(item, levels - 1) for key, item in value.items()} if levels > 1 else {}
    if isinstance(value, list):
        return [pruned(item, levels - 1) for item in value] if levels > 1 else []
    return value


@settings(max_examples=30)
@given(JSON, st.integers(1, 4), st.integers(1, 50))
def test_what_is_deeper_than_the_limit_is_left_out(value: Any, levels: int, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "MAX_LEVELS", levels)
        patch.setattr(nesting, "_CHUNK_BYTES", chunk)
        assert json.loads(shallow(json.dumps(value).encode())) == pruned(value, levels)


@settings(max_examples=30)
@given(st.text('{}[]"\\,:1'))
def test_any_text_is_taken(text: str) -> None:
    shallow(text.encode() * 30)


@pytest.mark.parametrize("depth", [10, 900, 990, 1000, 1010, 10_000])
def test_an_object_with_a_deep_value_is_decoded(depth: int) -> None:
    deep = '{"f:a":' * depth + "{}" + "}" * depth
    text = f'{{"metadata":{{"name":"a","managedFields":[{{"fieldsV1":{deep}}}]}},"data":{{"key":"{{[\\""}}}}'
    for document in (text, text.encode()):
        read: ConfigMap = json_decoder(ConfigMap).decode(document)
        assert read.metadata.name == "a" and read.data == {"key": '{["'}
    with pytest.raises(msgspec.DecodeError):
        decode_any_depth(msgspec.json.Decoder(), text[:-1])
