"""Prometheus takes what we say: metrics, rules and their tests by promtool, and a real server that scrapes a real pipeline."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdc.devstack.process import held_ports, port_of, start
from cdc.observe.consumers import CONSUMER_METRICS
from cdc.observe.dashboard import dashboard
from cdc.observe.exposition import Exposition
from cdc.observe.metrics import METRICS
from cdc.observe.observer import PipelineObserver
from tests.deploy.conftest import Debian
from tests.docs.pages import ROOT, anchors
from tests.pipeline import Pipeline
from tests.unit.observe.test_consumers import watched
from tests.waiting import wait_for

FOLDER = ROOT / "docker" / "prometheus"
PAGE = ROOT / "docs" / "alerts.md"

OTHERS = {"kube_pod_container_status_last_terminated_exitcode", "node_systemd_unit_state", "kafka_consumergroup_lag"}
"""Metrics of kube-state-metrics, node_exporter and an exporter of Kafka's offsets."""

NAMES = {each.name + ("_bucket" if each.kind == "histogram" else "") for each in (*METRICS, *CONSUMER_METRICS)}

QUIET = {"cdc_slot_lost_in_seconds", "cdc_slot_safe_wal_bytes", "cdc_ignored_messages_total", "cdc_dead_letters_open"}
"""Panels without an answer while nothing is wrong, the server's disk is not limited, and nobody has counted yet."""


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((FOLDER / "rules.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def asked(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:cdc|kube|node|kafka)_[a-z0-9_]+\b", re.sub(r'"[^"]*"', "", expression)))


def tool(program: Path, *arguments: str | Path, text: str | None = None) -> str:
    done = subprocess.run([program, *arguments], check=False, capture_output=True, text=True, timeout=60, input=text)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_alerts_and_panels_ask_for_metrics_that_exist() -> None:
    for rule in rules():
        assert asked(rule["expr"]) <= NAMES | OTHERS, rule["alert"]
    for expression in expressions():
        assert asked(expression) <= NAMES, expression


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    places = {rule["annotations"]["runbook_url"]: rule["alert"] for rule in rules()}
    assert set(places) == {f"docs/alerts.md#{rule['alert'].lower()}" for rule in rules()}
    assert anchors(PAGE) - {"alerts"} == {place.partition("#")[2] for place in places}
    assert all(rule["labels"]["severity"] in {"critical", "warning", "info"} for rule in rules())


def test_every_alert_is_tested_to_fire_and_to_be_silent() -> None:
    document = yaml.safe_load((FOLDER / "rules.test.yml").read_text())
    cases = [case for test in document["tests"] for case in test["alert_rule_test"]]
    names = {rule["alert"] for rule in rules()}
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == names
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == names


@pytest.mark.packages
def test_promtool_takes_the_metrics(debian: Debian) -> None:
    promtool = debian("promtool")
    observer = PipelineObserver("shop")
    observer.dead_letter("schema", "id", "000100000016b374d84000000000", "$.a: wrong", "")
    observer.published({"orders": (5, 700)})
    observer.ignored("update", 3)
    tool(promtool, "check", "metrics", text=Exposition(observer.health, observer.metrics).text().decode())
    tool(promtool, "check", "metrics", text=watched([0.0]).text().decode())


@pytest.mark.packages
def test_promtool_takes_rules_and_configuration_and_their_tests_pass(debian: Debian) -> None:
    promtool = debian("promtool")
    assert "SUCCESS" in tool(promtool, "check", "rules", FOLDER / "rules.yml")
    assert "SUCCESS" in tool(promtool, "test", "rules", FOLDER / "rules.test.yml")
    tool(promtool, "check", "config", FOLDER / "prometheus.yml")


@pytest.mark.packages
@pytest.mark.servers
def test_a_prometheus_that_scrapes_a_pipeline_answers_every_panel(debian: Debian, pipeline: Pipeline, tmp_path: Path) -> None:
    """Every panel that is not about something wrong shows a number while events are published, and no alert fires."""
    prometheus = debian("prometheus")
    pipeline.init()
    pipeline.started()
    held = held_ports(1)
    port = port_of(held[0])
    settings = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "200ms", "evaluation_interval": "200ms", "scrape_timeout": "200ms"}
    settings["rule_files"] = [str(FOLDER / "rules.yml")]
    settings["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{pipeline.port}"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(settings))
    server = start(
        [
            *(prometheus, f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}"),
            *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"),
        ],
        tmp_path / "prometheus.log",
        dies_with_us=True,
    )

    def ask(path: str, **parameters: str) -> Any:  # noqa: ANN401 - JSON
        address = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                return json.load(answer)["data"]
        except OSError:
            return {}

    def silent() -> set[str]:
        """The panels that have no answer, with more events at each look."""
        pipeline.insert(1)
        found = set()
        for expression in expressions():
            query = expression.replace("$__rate_interval", "10s").replace("$pipeline", "shop")
            values = [point["value"][1] for point in ask("query", query=query).get("result", ())]
            if not any(value != "NaN" for value in values):
                found |= asked(expression)
        return {name for name in found - QUIET if not name.startswith("cdc_consumer_")}

    try:
        wait_for(lambda: not silent(), 60, "every panel shows a number")
        alerts = ask("rules")["groups"][0]["rules"]
        assert len(alerts) == len(rules())
        assert all(alert["health"] == "ok" for alert in alerts)
        assert {alert["name"] for alert in alerts if alert["state"] != "inactive"} <= {"CdcStandbyMissing"}
    finally:
        server.terminate()
        server.wait(30)
        for each in held:
            each.close()
