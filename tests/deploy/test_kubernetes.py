"""The manifests by Kubernetes' own schemas, and what a schema cannot see: probes, labels, secrets, settings."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from cdc.settings import load
from tests.deploy.conftest import Debian
from tests.docs.pages import ROOT
from tests.docs.test_pages import parse

FOLDER = ROOT / "docker" / "kubernetes"
BASES = ("base", "init", "consumers")

VERSIONS = ("1.30", "1.37")
"""The oldest of Kubernetes that is promised, and the newest whose schemas there are."""


def resources(base: str) -> Iterator[dict[str, Any]]:
    """What a kustomization names, before kustomize has changed it."""
    listed = yaml.safe_load((FOLDER / base / "kustomization.yaml").read_text())["resources"]
    for name in listed:
        yield from yaml.safe_load_all((FOLDER / base / name).read_text())


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [each for base in BASES for each in resources(base) if each["kind"] == kind]


def pods() -> list[dict[str, Any]]:
    kinds = ("StatefulSet", "Deployment", "Job")
    return [each["spec"]["template"]["spec"] for kind in kinds for each in of_kind(kind)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("base", BASES)
def test_kubernetes_takes_every_resource(base: str, version: str) -> None:
    for resource in resources(base):
        kubernetes_validate.validate(resource, version, strict=True)


def test_every_file_is_named() -> None:
    for base in BASES:
        kustomization = yaml.safe_load((FOLDER / base / "kustomization.yaml").read_text())
        files = [name for made in kustomization.get("configMapGenerator", ()) for name in made["files"]]
        assert sorted(path.name for path in (FOLDER / base).iterdir()) == sorted(
            ["kustomization.yaml", *kustomization["resources"], *files]
        )
    assert (FOLDER / "base" / "cdc.toml").read_text() == (FOLDER / "init" / "cdc.toml").read_text()


@pytest.mark.packages
@pytest.mark.parametrize("base", BASES)
def test_kustomize_builds_it(base: str, debian: Debian) -> None:
    done = subprocess.run([debian("kubectl"), "kustomize", FOLDER / base], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    for resource in built:
        kubernetes_validate.validate(resource, VERSIONS[-1], strict=True)
    templates = [each["spec"]["template"]["spec"] for each in built if "template" in each.get("spec", {})]
    images = [container["image"] for template in templates for container in template["containers"]]
    assert all(":" in image and not image.endswith(":latest") for image in images)


def test_two_instances_and_a_node_can_be_drained() -> None:
    [stateful] = of_kind("StatefulSet")
    assert stateful["spec"]["replicas"] == 2
    assert stateful["spec"]["podManagementPolicy"] == "Parallel", "a standby would wait for the first to be ready"
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    [service] = of_kind("Service")
    assert service["spec"]["selector"].items() <= labels.items()
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    for budget in of_kind("PodDisruptionBudget"):
        assert budget["spec"]["maxUnavailable"] == 1
    assert of_kind("PodDisruptionBudget")[0]["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_probes_ask_what_there_is(tmp_path: Path) -> None:
    [stateful] = of_kind("StatefulSet")
    pod = stateful["spec"]["template"]["spec"]
    [container] = pod["containers"]
    probes = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert probes == {
        "startupProbe": "/health/live",
        "livenessProbe": "/health/live",
        "readinessProbe": "/health/ready?standby=ok",  # tests/unit/observe/test_http.py
    }
    environment = {each["name"]: each["value"].replace("/run/secrets/cdc", str(tmp_path)) for each in container["env"]}
    (tmp_path / "dsn").write_text("postgresql://cdc:p@db/shop\n")
    (tmp_path / "http-token").write_text("a-token-of-the-test\n")
    settings = load(FOLDER / "base" / "cdc.toml", [], {**environment, "CDC_HTTP__LISTEN": "0.0.0.0:8642"})
    assert settings.http.address == ("0.0.0.0", container["ports"][0]["containerPort"])
    assert pod["terminationGracePeriodSeconds"] > settings.shutdown_grace.total_seconds()
    for each in pods():
        for one in each["containers"]:
            if "args" in one:
                parse(one["args"][0], one["args"][1:])


def test_nobody_has_more_rights_than_needed() -> None:
    assert len(pods()) == 3
    for pod in pods():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
            assert not [each for each in container.get("env", ()) if "://" in each["value"]], "a secret comes from a file"


def test_consumers_are_counted_by_their_lag() -> None:
    [scaler] = of_kind("HorizontalPodAutoscaler")
    [deployment] = of_kind("Deployment")
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"], "the autoscaler counts them"
    [metric] = scaler["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == "kafka_consumergroup_lag"
