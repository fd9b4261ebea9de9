"""Charts of the last half hour, without a browser."""

from stilltide.pipeline.console.charts import CLUSTER, HEIGHT, WIDTH, charts
from stilltide.pipeline.core.status.samples import EVERY_MS, SPAN_MS, ClusterSample, Sample
from tests.support.console.answers import ANSWERS
from tests.support.console.pages import shown, text
from tests.support.console.states import BUSY, half_hour
from tests.support.status.samples import NOW_MS, A

NOTHING = ClusterSample(None, None, None, None, None, None)


def sample(ago: int, **figures: float) -> Sample:
    """A sample of so many times ten seconds ago."""
    return Sample(NOW_MS - ago * EVERY_MS, {A: NOTHING._replace(**figures)})


def test_a_chart_says_in_words_what_it_shows():
    """Now, least and most, since when, and the figures of each part of the time."""
    samples = [sample(180, open=4), sample(179, open=8), *(sample(it, open=2) for it in (1, 0))]
    (chart,) = charts(CLUSTER, A, samples, NOW_MS)
    assert chart.label == ("Open transactions, over the last 30 minutes: now 2, least 2, most 8.")
    assert (chart.most, chart.since, chart.lines[0].now) == ("8", "30 min ago", "2")
    titles = [part.title for part in chart.slices]
    assert titles[0] == "21:43 to 21:46 UTC: 4 to 8"
    assert titles[4] == "21:55 to 21:58 UTC: no sample"
    assert titles[-1] == "22:10 to 22:13 UTC: 2"


def test_a_gap_is_not_bridged_and_a_lonely_sample_is_seen():
    """The line ends, and begins again; the highest value is at the upper edge."""
    samples = [sample(180, open=4), sample(179, open=8), sample(90, open=8), sample(0, open=0)]
    path = charts(CLUSTER, A, samples, NOW_MS)[0].lines[0].path
    assert path == f"M0 25 L2 3 M{WIDTH // 2} 3 h1 M{WIDTH} {HEIGHT - 1} h1"


def test_after_a_start_the_chart_says_since_when():
    """Instead of a half hour that nobody has seen."""
    (chart,) = charts(CLUSTER, A, [sample(3, oldest_ms=0)], NOW_MS)
    assert chart.since == "no sample before 22:12:50 UTC"
    assert chart.label == (
        "Age of the oldest transaction, since 22:12:50 UTC: now none, least none, most none."
    )


def test_commits_and_aborts_share_a_chart():
    """With a name of each line."""
    (chart,) = charts(CLUSTER, A, [sample(0, commits_s=12.0, aborts_s=0.25)], NOW_MS)
    assert [(line.name, line.now) for line in chart.lines] == [("commits", "12"), ("aborts", "0.2")]
    assert "commits: now 12, least 12, most 12. aborts: now 0.2, least" in chart.label


def test_what_is_not_known_has_no_chart():
    """A cluster without links has no lag, and one that nobody has asked has no figures."""
    assert charts(CLUSTER, A, [sample(0)], NOW_MS) == ()
    assert charts(CLUSTER, A, [], NOW_MS) == ()


def test_a_drawing_does_not_grow_with_time():
    """A half hour of samples of a cluster is some kilobytes."""
    drawn = charts(CLUSTER, A, half_hour(BUSY).kept, BUSY.now_ms)
    assert len(drawn) == len(CLUSTER)
    assert max(len(line.path) for chart in drawn for line in chart.lines) < 9 * SPAN_MS / EVERY_MS


def test_pages_without_samples_say_so():
    """The figures of now are there all the same."""
    assert "No sample yet" in text("overview", BUSY)
    kept = half_hour(BUSY).kept
    page = shown("overview", BUSY, ANSWERS["busy"], kept)
    assert page.count('<li class="chart">') == 3 * len(CLUSTER)
    page = shown("transactions", BUSY, ANSWERS["busy"], kept)
    assert page.count('<li class="chart">') == 3 * 3
    filtered = shown("transactions?state=open", BUSY, ANSWERS["busy"], kept)
    assert '<li class="chart">' not in filtered
