import json
import re
import sqlite3
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stubs import TabularPolicy, TokenEvaluator
from wmrl_agents.cli import main
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.parts import Parts
from wmrl_agents.grpo.phases import time_by_phase
from wmrl_agents.grpo.trainer import GRPOTrainer
from wmrl_agents.report import write_report
from wmrl_agents.report.excerpts import clean, pick_excerpts
from wmrl_agents.report.figures import all_figures, failures_by_kind, reliability, score_against_executions
from wmrl_agents.report.run_data import read_run
from wmrl_agents.report.svg import Chart, Series, format_number, line_chart, stacked_bars
from wmrl_agents.report.trainer_figures import trainer_figures
from wmrl_agents.runs import create_run
from wmrl_envs.errors import ConfigError
from wmrl_envs.sandbox import ExecutionCache, Result

STEPS = 12
EVALUATION = {
    "score": 0.25,
    "valid_rate": 0.5,
    "valid_score": 0.5,
    "categories": {"image": {"score": 0.25, "valid_rate": 0.5, "valid_score": 0.5}},
    "tasks": [
        {"competition": "digits", "category": "image", "score": 0.25, "valid_rate": 0.5, "valid_score": 0.5}
    ],
    "half": "private",
    "repeats": 8,
}


def config(**changes):
    settings = {
        "steps": STEPS,
        "groups_per_step": 4,
        "group_size": 4,
        "max_turns": 2,
        "min_pairs": 12,
        "refit_every": 8,
        "warmup_groups": 2,
        "competitions": ("digits", "sms-spam"),
    }
    return GRPOConfig(**{**settings, **changes})


def train(run_dir, **changes):
    """A run by the real trainer, with a policy that is a table and a world model that flatters."""
    settings = config(**changes)
    world_model = (
        TokenEvaluator("world_model", lambda share: share**0.5) if settings.uses_world_model else None
    )
    GRPOTrainer(settings, run_dir, Parts(TabularPolicy.load, TokenEvaluator(), world_model)).train()
    return run_dir


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run_dir = train(tmp_path_factory.mktemp("runs") / "finished")
    (run_dir / "evaluation-before.json").write_text(json.dumps(EVALUATION))
    after = {**EVALUATION, "score": 0.405, "valid_rate": 0.9, "valid_score": 0.45}
    (run_dir / "evaluation-after.json").write_text(json.dumps(after))
    return run_dir


class Page(HTMLParser):
    """Tags, attributes and text of a page. Its tags must be balanced, and no attribute may be empty."""

    VOID = ("meta", "img", "!doctype")

    def __init__(self, path):
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(self.source)
        assert self.open == []
        assert [name for name, value in self.attributes if value == ""] == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def test_the_page_stands_alone(finished):
    page = Page(write_report(finished))
    assert not {"script", "link", "img", "iframe", "object", "form", "a"} & set(page.tags)
    assert not {"src", "href", "onload", "onclick", "style"} & {name for name, _ in page.attributes}
    assert "url(" not in page.source
    assert "@import" not in page.source
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes


def test_every_drawing_is_well_formed_and_has_a_name(finished):
    drawings = re.findall(r"<svg.*?</svg>", write_report(finished).read_text(encoding="utf-8"), re.DOTALL)
    assert len(drawings) == 9
    for drawing in drawings:
        assert ElementTree.fromstring(drawing).get("aria-label")


def test_the_headline_numbers(finished):
    metrics = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    used = sum(step["executions"] for step in metrics)
    would_use = sum(step["executions_real_would_use"] for step in metrics)
    text = Page(write_report(finished)).text
    assert "Percentile 0.25 → 0.41 +0.155; private half, avg@8" in text
    assert "Failing scripts 50% → 10%" in text
    assert "Valid percentile 0.50 → 0.45" in text
    assert f"Executions {used} {used / would_use:.0%} of the {would_use} of real execution" in text
    assert f"{STEPS} of {STEPS} steps" in text
    assert "has not finished" not in text


def test_the_table_groups_tasks_under_their_category(finished):
    text = Page(write_report(finished)).text
    assert "In all 0.250 0.405 +0.155 50% 10% 0.500 0.450" in text
    assert "Image 0.250 0.250 +0.000 50% 50% 0.500 0.500 digits 0.250 0.250" in text


def test_the_same_run_gives_the_same_page(finished):
    assert write_report(finished).read_bytes() == write_report(finished).read_bytes()


def test_calibrated_scores_are_those_that_the_run_was_trained_on(finished):
    run = read_run(finished)
    stored = [
        (one.predicted, one.real, one.calibrated)
        for one in run.trajectories
        if one.source == "real" and one.predicted is not None and one.real is not None
    ]
    assert [pair[1:] for pair in run.pairs] == [(predicted, real) for predicted, real, _ in stored]
    fitted_from = next(step["step"] for step in run.metrics if step["fitted"])
    late = [
        (one.calibrated, one.real)
        for one in run.trajectories
        if one.source == "real" and one.predicted is not None and one.step >= fitted_from
    ]
    errors = np.array([calibrated - real for calibrated, real in late])
    (_, _), (caption, _) = reliability(run).drawings
    assert caption == (
        f"After debiasing: mean error {errors.mean():+.3f}, mean absolute error {np.abs(errors).mean():.3f}"
    )


def test_failing_shares_are_those_of_the_log(finished):
    run = read_run(finished)
    for step in run.metrics:
        endings = [one for one in run.endings if one[0] == step["step"]]
        executed = {status: count for _, source, status, count in endings if source == "real"}
        assert sum(executed.get(kind, 0) for kind in ("ok", "error")) == step["executions"]
        assert executed.get("error", 0) == step["failures"].get("error", 0)
        assert sum(count for _, _, _, count in endings) == step["turns"]
    assert {mark.label for mark in failures_by_kind(run).legend} == {"error", "no code"}


def test_excerpts_are_best_median_worst_and_the_worst_predicted_anchor(finished):
    run = read_run(finished)
    excerpts = pick_excerpts(run)
    late = [one for one in run.trajectories if one.step >= 0.75 * (STEPS - 1)]
    scores = sorted(one.score for one in late if one.score is not None)
    reasons = {reason: one.trajectory for one in excerpts for reason in one.why.lower().split("; ")}
    assert reasons["best"].score == scores[-1]
    assert reasons["worst"].score == scores[0]
    assert reasons["median"].score == scores[len(scores) // 2]
    gaps = [
        abs(one.real - one.predicted) for one in late if one.source == "real" and one.predicted is not None
    ]
    anchor = reasons["the anchor whose prediction was furthest off"]
    assert abs(anchor.real - anchor.predicted) == max(gaps)
    assert len({one.trajectory for one in excerpts}) == len(excerpts)
    assert all("Metric:" in one.task and one.turns for one in excerpts)


def test_what_an_agent_wrote_cannot_leave_its_box(tmp_path):
    run_dir = train(tmp_path / "hostile", steps=1)
    markup = "</pre></main><script>alert(1)</script><img src=x onerror=alert(2)>&lt;"
    hostile = markup + "\x1b[2J\x1b]0;title\x07\x00\u202e"
    with sqlite3.connect(run_dir / "run.sqlite") as connection:
        connection.execute("UPDATE turns SET reply = ?, observation = ?", (hostile, hostile))
        connection.execute("UPDATE trajectories SET competition = '<b>../../x'")
        connection.execute("UPDATE evaluations SET status = '<i>'")
    page = Page(write_report(run_dir))
    assert not {"script", "img", "b"} & set(page.tags)
    assert page.tags.count("i") == page.source.count('<i class="')
    assert f"{markup}\ufffd\ufffd" in page.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", page.source)


def test_a_run_without_steps_says_so(tmp_path):
    create_run(tmp_path / "new", config())
    text = Page(write_report(tmp_path / "new")).text
    assert f"This run has not finished: 0 of {STEPS} steps are made." in text
    assert "No step has been made yet." in text
    assert "This run has not been evaluated." in text
    assert "There is no finished trajectory yet." in text


def test_a_killed_run_is_shown_as_far_as_it_got(tmp_path):
    run_dir = train(tmp_path / "killed", steps=3)
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "score": 0.')
    settings = (run_dir / "config.yaml").read_text()
    (run_dir / "config.yaml").write_text(settings.replace("steps: 3", "steps: 9"))
    (run_dir / "environment.json").unlink()
    (run_dir / "evaluation-before.json").write_text(json.dumps(EVALUATION))
    text = Page(write_report(run_dir)).text
    assert "This run has not finished: 3 of 9 steps are made." in text
    assert f"wmrl train --resume {run_dir}" in text
    assert "There is no evaluation after training." in text
    assert "In all 0.250 – – 50% – 0.500 –" in text


def test_a_run_without_a_world_model_has_nothing_to_calibrate(tmp_path):
    run = read_run(train(tmp_path / "real", steps=2, reward_source="real"))
    page = Page(write_report(run.path))
    assert "This run has no trajectory that was both predicted and executed." in page.text
    assert "judged by execution alone" in page.text
    figure = score_against_executions(run)
    assert "All of the" in figure.text
    assert len(figure.legend) == 2


def test_a_run_without_anchors_has_no_weight(tmp_path):
    run = read_run(train(tmp_path / "predicted", steps=2, reward_source="world_model"))
    missing = {figure.title for figure in all_figures(run) if figure.missing}
    assert missing == {"Reliability of the world model", "Weight of the anchors"}
    assert Page(write_report(run.path)).text


def test_an_empty_database_is_no_error(tmp_path):
    create_run(tmp_path / "new", config())
    sqlite3.connect(tmp_path / "new/run.sqlite").close()
    assert read_run(tmp_path / "new").trajectories == []


def test_the_command_prints_where_the_page_is(finished, capsys):
    assert main(["report", str(finished)]) == 0
    assert capsys.readouterr().out.strip() == str(finished / "report" / "index.html")


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    with pytest.raises(ConfigError, match="There is no run in"):
        write_report(tmp_path)
    assert main(["report", str(tmp_path)]) == 2
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("name", ["run.sqlite", "evaluation-before.json", "environment.json"])
def test_a_file_that_is_not_what_it_should_be_is_named(tmp_path, name):
    create_run(tmp_path / "new", config())
    (tmp_path / "new" / name).write_text("{ this is neither")
    with pytest.raises(ConfigError, match=re.escape(f"new/{name}")):
        write_report(tmp_path / "new")


@given(st.text())
def test_cleaned_text_can_be_written_and_hides_nothing(text):
    cleaned = clean(text)
    cleaned.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", cleaned)
    assert clean(cleaned) == cleaned


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"])))
def test_ordinary_text_stays_as_it_is(text):
    assert clean(text) == text


def test_format_number():
    shown = [format_number(value) for value in (None, float("nan"), 0, 1234567, -0.25, 0.12345, 1234.5)]
    assert shown == ["–", "–", "0", "1,234,567", "−0.25", "0.123", "1,234"]


def test_a_line_is_drawn_where_its_values_are():
    chart = Chart("t", "x", "y", x_range=(0, 10), y_range=(0, 1), width=176, height=160)
    drawing = ElementTree.fromstring(line_chart(chart, [Series("s", [0, 5, 7, 10], [0.0, 1.0, None, 0.5])]))
    (path,) = (one for one in drawing if one.tag == "path")
    # 60 + 100 x and 114 - 100 y: margins of 60 and 16 beside, of 14 above and 46 below
    assert path.get("d") == "M60.0,114.0L110.0,14.0M160.0,64.0h0"


def test_bars_are_stacked_from_the_floor():
    chart = Chart("t", "step", "y", y_range=(0, 1), width=176, height=160)
    layers = [Series("a", [0, 1], [0.5, None], 1), Series("b", [0, 1], [0.25, 1.0], 2)]
    bars = [one for one in ElementTree.fromstring(stacked_bars(chart, [0, 1], layers)) if one.tag == "rect"]
    assert [(bar.get("class"), bar.get("y"), bar.get("height")) for bar in bars] == [
        ("fill c1", "64.0", "50.0"),
        ("fill c2", "39.0", "25.0"),
        ("fill c2", "14.0", "100.0"),
    ]


def test_labels_are_escaped():
    chart = Chart("<t>", "<x>", '"y"')
    drawing = ElementTree.fromstring(line_chart(chart, [Series("<s>", [0.0], [0.0])]))
    assert drawing.get("aria-label") == "<t>"
    assert {"<x>", '"y"'} <= {one.text for one in drawing if one.tag == "text"}


@given(st.lists(st.tuples(*[st.floats(-1e9, 1e9)] * 2), min_size=1, max_size=20))
def test_any_points_stay_inside_the_frame(points):
    xs, ys = zip(*points, strict=True)
    drawing = ElementTree.fromstring(line_chart(Chart("t", "x", "y"), [Series("s", xs, ys, kind="dots")]))
    dots = [one for one in drawing if one.tag == "circle"]
    assert len(dots) == len(points)
    assert all(
        59.9 <= float(dot.get("cx")) <= 704.1 and 13.9 <= float(dot.get("cy")) <= 234.1 for dot in dots
    )
    ticks = [one for one in drawing if one.get("class") == "tick"]
    assert 1 <= len(ticks) <= 30


def test_the_page_says_what_is_missing_by_the_machines_fault_and_what_cannot_be_repeated(tmp_path):
    run_dir = train(tmp_path / "run")
    evaluation = {**EVALUATION, "missing": 3, "missing_reasons": {"The <disk> is full.": 3}}
    (run_dir / "evaluation-after.json").write_text(json.dumps(evaluation))
    cache = ExecutionCache(run_dir / "executions.sqlite")
    for key, same in (("a", True), ("b", False)):
        cache.store(key, Result("ok"))
        cache.store_recheck(key, same)
    text = Page(write_report(run_dir)).text
    assert "In the evaluation after 3 scores are missing by the machine's fault. 3 times: The <disk>" in text
    assert "Not repeatable 1 of 2 stored programs that were run twice" in text
    for path in run_dir.glob("executions.sqlite*"):
        path.unlink()
    (run_dir / "executions.sqlite").write_text("not a database")
    assert "Not repeatable" not in Page(write_report(run_dir)).text


def test_the_page_says_where_the_time_went(tmp_path):
    train(tmp_path / "run")
    page = write_report(tmp_path / "run").read_text()
    assert "Where the time goes" in page
    assert re.search(r"12 steps took [\d.]+ s by the clock: generate \d+%, predict \d+%", page)
    assert "Gradient audit" not in page
    (figure,) = trainer_figures(read_run(tmp_path / "run"))
    assert not figure.missing


def test_the_page_shows_the_audit_where_there_was_one(tmp_path):
    train(tmp_path / "run", audit_gradients=True)
    run = read_run(tmp_path / "run")
    _, audit = trainer_figures(run)
    assert [caption for caption, _ in audit.drawings] == [
        "Weight of an anchor: measured and estimated",
        "Variance above that of the best weight",
        "Bias, relative to the mean real gradient",
    ]
    assert re.search(r"Cosine between the two mean gradients at the end: -?[01]\.\d\d\.", audit.text)
    assert "Gradient audit" in write_report(tmp_path / "run").read_text()


def test_a_run_without_times_and_audits_says_so(tmp_path):
    create_run(tmp_path / "run", config(audit_gradients=True))
    time, audit = trainer_figures(read_run(tmp_path / "run"))
    assert time.missing
    assert audit.missing


def test_time_by_phase_in_words():
    step = {
        **{f"seconds_{name}": 1.0 for name in ("generate", "train", "wait", "other")},
        "seconds_predict": 0.0,
        "seconds_step": 4.0,
        "seconds_execute": 3.0,
        "seconds_workers_generate": 2.0,
        "seconds_workers_train": 1.5,
        "seconds_workers_execute": 6.0,
    }
    assert time_by_phase([step, step]) == (
        "2 steps took 8.0 s by the clock: generate 25%, predict 0%, train 25%, wait 25%, other 25%; "
        "executions were under way during 75%. Processes and sandboxes together spent 4.0 s generating, 3.0 "
        "s on gradients, 12.0 s executing."
    )
    assert time_by_phase([]) is None
    assert time_by_phase([{"step": 0}]) is None
