"""The images: small, without rights, and whole without a network."""

import json

import pytest

from tests.support.processes.containers import SPARK_IMAGE, WORKER_IMAGE, docker, run_image

WORKER_BYTES_MAX = 400 * 1000 * 1000


def test_worker_image_is_small_and_has_no_java():
    """At most 400 MB; Java comes with the image for Spark alone."""
    image = json.loads(docker("image", "inspect", WORKER_IMAGE).stdout)[0]
    assert image["Size"] <= WORKER_BYTES_MAX
    assert image["Config"]["User"] not in ("", "0", "root")
    looked = run_image(WORKER_IMAGE, "-c", "command -v java", options=("--entrypoint", "sh"))
    assert looked.returncode != 0


@pytest.mark.parametrize("image", [WORKER_IMAGE, SPARK_IMAGE])
def test_images_run_without_rights_on_a_read_only_system(image: str):
    """Not root, nothing to write but /tmp, no capability: the commands work."""
    rights = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "none")  # noqa: S108 - the container's
    shown = run_image(image, "config", "show", "-o", "json", options=rights)
    assert shown.returncode == 0, shown.stderr
    settings = {row["setting"]: row["value"] for row in json.loads(shown.stdout)}
    assert settings["web_host"] == "127.0.0.1"


def test_jars_of_spark_are_in_the_image():
    """A container without a network has all that Spark's Kafka source needs."""
    program = "from stilltide.connectors.local.jars import spark_jars; print(len(spark_jars()))"
    done = run_image(
        SPARK_IMAGE, "-c", program, options=("--network", "none", "--entrypoint", "python")
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
    assert "fetching" not in done.stderr
