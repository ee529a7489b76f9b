import io
import json
from concurrent.futures import Future

import pytest
from rich.console import Console

from tests.stubs import TabularPolicy, TokenEvaluator, program_tokens
from wmrl_agents.evaluate import TaskResult, as_mle_bench, play_and_judge, save_evaluation, summarise
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.policies.chat import ChatPolicy
from wmrl_agents.summary import print_evaluation, print_summary
from wmrl_envs.autoresearch import load_competition
from wmrl_envs.errors import InfrastructureError, WMRLError
from wmrl_envs.evaluation import Grade
from wmrl_rewards.language_models.base import Generation

COMPETITIONS = [load_competition(name) for name in ("breast-cancer", "digits")]
CONFIG = GRPOConfig(max_turns=3, evaluation_repeats=5)


def test_averages_run_over_tasks_then_over_categories():
    summary = summarise(
        [
            TaskResult("a", "tabular", (1.0, 0.0), ("ok", "error")),
            TaskResult("b", "tabular", (0.2, 0.4), ("ok", "ok")),
            TaskResult("c", "text", (0.0, 0.0, None), ("timeout", "no_program", "infrastructure")),
        ]
    )
    # tabular: scores .5 and .3, valid rates .5 and 1, valid scores 1 and .3; text: 0, 0, none.
    assert summary["categories"]["tabular"] == pytest.approx(
        {"score": 0.4, "best_score": 0.7, "valid_rate": 0.75, "valid_score": 0.65}
    )
    assert summary["categories"]["text"] == {
        "score": 0.0,
        "best_score": 0.0,
        "valid_rate": 0.0,
        "valid_score": None,
    }
    assert summary["score"] == pytest.approx(0.2)
    assert summary["best_score"] == pytest.approx(0.35)
    assert summary["valid_rate"] == pytest.approx(0.375)
    assert summary["valid_score"] == pytest.approx(0.65)
    assert summary["failures"] == {"error": 1, "infrastructure": 1, "no_program": 1, "timeout": 1}
    assert summary["missing"] == 1


def test_a_task_whose_infrastructure_failed_has_no_score():
    summary = summarise([TaskResult("a", "text", (None, None), ("infrastructure", "infrastructure"))])
    assert summary["score"] is None
    assert summary["missing"] == 2


def test_the_judge_scores_the_last_program_and_the_agent_hears_the_other_half():
    judged = TokenEvaluator(score=lambda share: 1 - share)
    results, executions = play_and_judge(TabularPolicy(), COMPETITIONS, CONFIG, TokenEvaluator(), judged)
    assert [result.competition for result in results] == ["breast-cancer", "digits"]
    assert all(len(result.scores) == 5 for result in results)
    assert len(judged.seen) <= 10 < executions <= 30
    again, _ = play_and_judge(TabularPolicy(), COMPETITIONS, CONFIG, TokenEvaluator(), judged)
    assert again == results


def test_what_the_judge_says_never_reaches_the_agent():
    heard = []

    class Listening(TabularPolicy):
        def extend(self, sample, user):
            heard.append(user)
            return super().extend(sample, user)

    play_and_judge(Listening(), COMPETITIONS, CONFIG, TokenEvaluator(score=lambda s: 0.25), TokenEvaluator())
    percentiles = [line for text in heard for line in text.splitlines() if line.startswith("percentile")]
    assert percentiles
    assert set(percentiles) == {"percentile: 0.25"}


class Parrot:
    """A chat model that answers with the number of messages that it was shown."""

    def __init__(self, error=None):
        self.error = error
        self.dialogues = []

    def generate(self, conversations, sampling, samples=1):
        self.dialogues += conversations
        if self.error:
            return [[Generation("", finished=False, error=self.error)] for _ in conversations]
        return [[Generation(f"```python\ntokens = [{len(c) % 3}, 1]\n```")] for c in conversations]

    def count_tokens(self, text):
        return len(text.split())


def test_a_chat_model_plays_through_its_messages():
    parrot = Parrot()
    policy = ChatPolicy(parrot, max_new_tokens=50)
    results, executions = play_and_judge(policy, COMPETITIONS, CONFIG, TokenEvaluator(), TokenEvaluator())
    assert executions == 2 * 5 * 3
    # Messages at turn 0, 1, 2: 2, 4, 6. The last program is [6 % 3, 1].
    assert {result.scores for result in results} == {(0.5,) * 5}
    last = parrot.dialogues[-1]
    assert [message["role"] for message in last] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert program_tokens(last[2]["content"].splitlines()[1]) == [2, 1]
    assert last[3]["content"].startswith("status: ok")


def test_an_endpoint_without_an_answer_is_an_error_not_a_zero():
    policy = ChatPolicy(Parrot(error="No answer from http://nowhere."), max_new_tokens=50)
    with pytest.raises(WMRLError, match="No answer"):
        play_and_judge(policy, COMPETITIONS, CONFIG, TokenEvaluator(), TokenEvaluator())


def test_lost_executions_are_missing():
    class Lost(TokenEvaluator):
        def submit(self, solution, group=None, *, deadline=None):
            future = Future()
            future.set_result(TokenEvaluator(missing=1).one([1]))
            return future

    results, _ = play_and_judge(TabularPolicy(), COMPETITIONS, CONFIG, TokenEvaluator(), Lost())
    summary = summarise(results)
    assert summary["missing_reasons"] == {"lost": summary["missing"]}
    assert summary["missing"] + sum(status == "no_program" for r in results for status in r.statuses) == 10
    assert summary["failures"]["infrastructure"] == summary["missing"] > 0

    with pytest.raises(InfrastructureError, match="lost"):
        play_and_judge(
            TabularPolicy(),
            COMPETITIONS,
            CONFIG.replace(on_infrastructure="stop"),
            TokenEvaluator(),
            Lost(),
        )


def shown(show, *arguments):
    console = Console(file=io.StringIO(), width=160)
    show(console, *arguments)
    return console.file.getvalue()


def evaluation(score, valid_rate, valid_score):
    numbers = {"score": score, "best_score": 0.875, "valid_rate": valid_rate, "valid_score": valid_score}
    return {
        **numbers,
        "tasks": [{"competition": "digits", **numbers, "failures": {"error": 3}}],
        "categories": {"image": numbers},
        "missing": 1,
        "missing_reasons": {"The disk is full.": 1},
        "half": "private",
        "repeats": 8,
    }


def test_summary_tells_failures_from_quality_and_counts_executions():
    metrics = [
        {
            "executions": 8,
            "executions_real_would_use": 64,
            "executions_repeated": 2,
            "fitted": step > 0,
            "rho": rho,
        }
        for step, rho in enumerate((1.0, 1.0, 2.0, 2.5))
    ]
    text = shown(print_summary, CONFIG, metrics, evaluation(0.3, 0.6, 0.5), evaluation(0.5, 0.8, 0.625))
    rows = [" ".join(line.replace("│", " ").split()) for line in text.splitlines()]
    assert "score 0.300 0.500 +0.200" in rows
    assert "failing scripts 40% 20% -20%" in rows
    assert "percentile of valid scripts 0.500 0.625 +0.125" in rows
    assert "32 of the 256 that real-execution GRPO would have used (12.5%)" in text
    assert "from 200 pairs on, and again every 64" in text
    assert "with a fitted map: 3 of 4; with rho other than 1: 2 of 4; with both: 2 of 4" in text


def test_summary_of_a_run_without_evaluations_or_programs():
    metrics = [
        {
            "executions": 0,
            "executions_real_would_use": 0,
            "executions_repeated": 0,
            "fitted": False,
            "rho": 1.0,
        }
    ]
    assert "0 of the 0" in shown(print_summary, CONFIG, metrics, None, None)
    assert "- 0.500 -" in " ".join(
        shown(print_summary, CONFIG, metrics, None, evaluation(0.5, 0.8, None)).replace("│", " ").split()
    )


def test_tables_name_tasks_and_failures():
    text = shown(print_evaluation, evaluation(0.5, 0.8, None), "tiny-coder")
    for part in (
        "tiny-coder",
        "digits",
        "0.500",
        "0.875",
        "20%",
        "error 3",
        "image",
        "avg@8",
        "best@8",
        "1 trajectories",
        "1 x The disk is full.",
    ):
        assert part in text


def test_numbers_are_saved_as_json(tmp_path):
    summary = summarise([TaskResult("a", "text", (0.5, None), ("ok", "infrastructure"))])
    save_evaluation(summary, tmp_path / "deep" / "evaluation.json")
    assert json.loads((tmp_path / "deep" / "evaluation.json").read_text()) == summary


def test_results_in_the_terms_of_mle_bench():
    board = COMPETITIONS[0].leaderboard("private")
    best, worst = board[0], board[-1]
    grades = (Grade("ok", best, 1.0), Grade("ok", worst, 0.0), Grade("no_submission"), None, None)
    scores = (1.0, 0.0, 0.0, 0.0, None)
    statuses = ("ok", "ok", "no_submission", "error", "infrastructure")
    whole = as_mle_bench([TaskResult("breast-cancer", "tabular", scores, statuses, grades)], COMPETITIONS)
    reports = whole.pop("competition_reports")
    assert whole == {
        "total_runs": 4,
        "total_runs_with_submissions": 2,
        "total_valid_submissions": 2,
        "total_medals": 1,
        "total_gold_medals": 1,
        "total_silver_medals": 0,
        "total_bronze_medals": 0,
    }
    assert [report["score"] for report in reports] == [best, worst, None, None]
    json.dumps(reports)
