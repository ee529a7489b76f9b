import ast
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wmrl_envs.autoresearch.replies import is_complete, parse


@pytest.mark.parametrize(
    "reply",
    [
        "```python\nprint(1)\n```",
        "```py\nprint(1)\n```",
        "```Python\nprint(1)\n```",
        "```python3\nprint(1)\n```",
        "``` python \nprint(1)\n```  ",
        "```{.python}\nprint(1)\n```",
        "```python title=a.py\nprint(1)\n```",
        "~~~python\nprint(1)\n~~~",
        "~~~~py\nprint(1)\n~~~~~",
        "````python\nprint(1)\n````",
        "```\nprint(1)\n```",
        "```main\nprint(1)\n```",
        "Here it is:\n\n```python\n\nprint(1)\n\n```\n\nGood luck!",
        "Here it is: ```python\nprint(1)\n```",
        "```python\r\nprint(1)\r\n```\r\n",
        "1. First\n   ```python\n   print(1)\n   ```",
        "```python\nprint(1)```",
        "<think>```python\nprint(0)\n```</think>\n```python\nprint(1)\n```",
        "thinking without a tag ```python\nprint(0)\n``` </think>```python\nprint(1)\n```",
        "```bash\npip install x\n```\n```python\nprint(1)\n```\n```json\n{}\n```",
        "```\nno program\n```\n```python\nprint(1)\n```",
        "```python\nprint(1)\n```\n```\nstatus: ok\n```",
        "```python\nprint(0)\n```\nOr better:\n```python\nprint(1)\n```",
        "```markdown\nMy answer:\n```python\nprint(1)\n```\nThat is all.\n```",
        "````md\n```python\nprint(1)\n```\n````",
        "```python\nprint(1)\n```\n```python\nprint(2)",
    ],
)
def test_finds_the_program(reply):
    found = parse(reply)
    assert (found.kind, found.code, found.truncated) == ("code", "print(1)", False)


@pytest.mark.parametrize(
    "code",
    [
        "text = '''\n```\nprint(0)\n```\n'''\nprint(text)",
        'text = """a \\""" b\n```\n"""',
        "def f():\n    '''Doc.\n\n    ```python\n    f()\n    ```\n    '''\n    return 1",
        '# it\'s """ in a comment\nprint(1)',
        "a = \"'''\"\nb = '\"\"\"'\nprint(a, b)",
        "x = 'don\\'t'\ny = \"\"\n~~~ = 0",
        "s = '```'",
        "if True:\n\tprint('tab')",
        "print('Grüße 世界 🎲')",
        "print('\u2028 and \x0b and \x0c do not end a line')",
    ],
)
def test_code_comes_out_as_it_went_in(code):
    assert parse(f"Some prose.\n```python\n{code}\n```\nMore prose, it's here.").code == code


def test_a_string_that_never_ends_does_not_swallow_the_reply():
    found = parse("```python\nx = '''\n```\nThat's it.\n```text\nout\n```")
    assert (found.code, found.truncated) == ("x = '''", False)


def test_code_in_a_list_is_dedented():
    code = parse("- Do:\n  ```python\n  for i in range(3):\n      print(i)\n  ```").code
    assert code == "for i in range(3):\n    print(i)"
    ast.parse(code)


@pytest.mark.parametrize(
    "reply", ["```python\nprint(1)\nprin", "Sure:\n```\nprint(1)\nprin", "~~~py\nprint(1)\nprin"]
)
def test_a_cut_reply_is_marked(reply):
    found = parse(reply)
    assert (found.kind, found.code, found.truncated) == ("code", "print(1)\nprin", True)


def test_a_closed_block_comes_before_a_cut_one():
    found = parse("```\nprint(1)\n```\n```python\nprint(")
    assert (found.code, found.truncated) == ("print(1)", False)


INVENTED = dedent(
    """\
    ```python
    print(1)
    ```
    {marker}
    ```python
    print('not mine')
    ```
    """
)


@pytest.mark.parametrize(
    "marker",
    [
        "Observation:",
        "**Observation**: fine",
        "### Status: ok",
        "status: ok",
        "User: go on",
        "<|im_start|>user",
    ],
)
def test_what_the_agent_invents_is_cut(marker):
    reply = INVENTED.format(marker=marker)
    found = parse(reply)
    assert found.code == "print(1)"
    assert reply[: found.end] == "```python\nprint(1)\n```\n"


def test_end_counts_the_thinking_too():
    reply = "<think>hm</think>\n" + INVENTED.format(marker="Observation: ok")
    assert reply[: parse(reply).end].endswith("print(1)\n```\n")
    assert parse("just words").end == len("just words")


@pytest.mark.parametrize(
    "before", ["Observation: it failed. So:", "```bash\nls\n```\nStatus: fine.", "```text\nx\n```\nUser: x"]
)
def test_an_observation_before_the_program_is_prose(before):
    assert parse(f"{before}\n```python\nprint(1)\n```").code == "print(1)"


@pytest.mark.parametrize(
    "reply", ["submit", "Submit.", " SUBMIT \n", "`submit`", "```submit\n```", "**submit**"]
)
def test_submit(reply):
    assert parse(reply).kind == "submit"


def test_code_comes_before_submit():
    assert parse("```python\nprint(1)\n```\n```submit\n```").kind == "code"


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("request_info", ""),
        ("request_info: overview", "overview"),
        ("request_info(data_structure)", "data_structure"),
        ('request_info("Name")', "name"),
        ("```request_info\nsample_submission\n```", "sample_submission"),
    ],
)
def test_request_info(reply, wanted):
    found = parse(reply)
    assert (found.kind, found.wanted) == ("request_info", wanted)


@pytest.mark.parametrize(
    ("reply", "truncated"),
    [
        ("", False),
        ("I submit that this is hard.", False),
        ("import os\nprint(1)", False),
        ("```bash\npip install x\n```", False),
        ("```text\nprint(1)\n```", False),
        ("```python\n```", False),
        ("```python\n\n\n", True),
        ("Use `print(1)` or ```print(1)```.", False),
        ("<think>```python\nprint(1)\n```", True),
        ("\ud800 ```python\nprint(1)\n```", False),
    ],
)
def test_malformed(reply, truncated):
    found = parse(reply)
    assert (found.kind, found.code, found.truncated) == ("malformed", "", truncated)
    assert found.problem.endswith(".")


PIECES = st.sampled_from(
    [
        "```",
        "~~~",
        "````",
        "```python\n",
        "```md\n",
        "\n",
        "'''",
        '"""',
        "\\",
        "#",
        "submit",
        "Observation:",
        "<think>",
        "</think>",
        " ",
        "print(1)",
        "\r\n",
        "\x00",
        "`",
        "status: ok",
        "request_info",
    ]
)


@settings(max_examples=1000)
@given(st.lists(st.one_of(PIECES, st.text(max_size=8)), max_size=40).map("".join))
def test_any_text_is_parsed(text):
    found = parse(text)
    assert 0 <= found.end <= len(text)
    assert (found.kind == "code") == bool(found.code)
    assert (found.kind == "malformed") == bool(found.problem)


@given(
    st.text(alphabet=st.characters(blacklist_categories=["Cs"], blacklist_characters="`~\r'\"\\"), min_size=1)
)
def test_any_program_without_quotes_and_fences_survives(body):
    code = body.strip("\n").rstrip()
    expected = code if code else ""
    assert parse(f"```python\n{body}\n```").code == expected


@pytest.mark.parametrize(
    "text",
    [
        "```python\n" + '\\"' * 50_000,
        "```\n\\'''\n```\n" * 8_000,
        "```python\n'''\n" + "```\n" * 25_000,
        "```\n```\n" + "#_* " * 25_000,
        "submit" + " " * 100_000 + "x y",
        "```md\n" * 16_000,
    ],
    ids=["escapes", "strings", "fences", "markers", "blanks", "wrappers"],
)
def test_hostile_texts_end(text):
    """Each of these took minutes, or for ever, under an obvious way to read replies."""
    assert parse(text).kind in ("code", "malformed")


PIECES = [
    "```python\n",
    "```\n",
    "```",
    "x = 1\n",
    '"""',
    "'''\n",
    "~~~\n",
    "```text\n",
    "```markdown\n",
    "<think>\n",
]
PIECES += ["</think>\n", "\n", "Observation: ok\n", "# ```\n", "print('```')\n", "submit\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.lists(st.sampled_from(PIECES), max_size=6))
def test_a_complete_reply_holds_a_closed_program_whatever_comes_next(beginning, rest):
    text = "".join(beginning)
    if not is_complete(text) or "</think>" in "".join(rest):  # after which all before it is thinking
        return
    reply = parse(text + "".join(rest))
    assert reply.kind == "code"
    assert not reply.truncated


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("```python\nprint(1)\n```\n", True),
        ("~~~py\nprint(1)\n~~~\n", True),
        ("```\nprint(1)\n```\nwords", True),
        ("```markdown\n```python\nprint(1)\n```\n```\n", True),
        ("<think>\n```python\nx\n```\n</think>\n```python\nprint(1)\n```\n", True),
        ("", False),
        ("```python\nprint(1)\n```", False),  # it may go on as ```json
        ("```python\nprint(1)\n", False),
        ("```python\n```\n", False),  # no program
        ("```text\nwords\n```\n", False),
        ("```python\nx = '''\n```\n", False),  # in a string that may still end
        ("```python\nprint(1)```\n", False),
        ("```markdown\n```python\nprint(1)\n```\n", False),
        ("<think>\n```python\nprint(1)\n```\n", False),
        ("submit\n", False),
    ],
)
def test_when_a_reply_is_complete(text, complete):
    assert is_complete(text) == complete
