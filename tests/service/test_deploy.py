"""What `deploy/` holds is sound, and agrees with the code and with itself. Nothing of it is started here."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml

from gemmill.cli import application
from gemmill.library.config.names import parse_name
from gemmill.runtime import settings
from gemmill.runtime.settings import Settings, number_of_bytes
from gemmill.service import server
from gemmill.service.application import ENDPOINTS
from gemmill.service.service_options import Options

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DEFAULTS = Options(state=Path("/state"))
ENDS_AFTER = server._NOTICE_SECONDS + DEFAULTS.drain
STATE = "/var/lib/gemmill"
STORE = f"{STATE}/store"

# -- what the files say --


@cache
def dockerfile() -> tuple[tuple[str, str], ...]:
    """Instructions and their arguments."""
    text = (DEPLOY / "Dockerfile").read_text()
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return tuple((word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line))


def last(instruction: str) -> str:
    return [rest for word, rest in dockerfile() if word == instruction][-1]


@cache
def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


@cache
def objects() -> dict[str, Any]:
    """Of Kubernetes, by kind."""
    kustomization = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    files = {path.name for path in (DEPLOY / "kubernetes").iterdir()}
    assert {*kustomization["resources"]} == files - {"kustomization.yaml"}
    found = [yaml.safe_load((DEPLOY / "kubernetes" / name).read_text()) for name in kustomization["resources"]]
    assert {one["metadata"].get("namespace", one["metadata"]["name"]) for one in found} == {kustomization["namespace"]}
    assert pod_image(found) in [image["name"] for image in kustomization["images"]]
    return {one["kind"]: one for one in found}


def pod_image(found: Sequence[Any]) -> str:
    (deployment,) = (one for one in found if one["kind"] == "Deployment")
    return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])


def pod() -> Any:
    return objects()["Deployment"]["spec"]["template"]["spec"]


def container() -> Any:
    (only,) = pod()["containers"]
    return only


@cache
def unit() -> dict[str, list[str]]:
    """Settings of the unit, with all the values of each."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "gemmill.service").read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def commands() -> dict[str, list[str]]:
    """Command lines of gemmill, by who runs it."""
    script = (DEPLOY / "prepare.sh").read_text()
    services = compose()["services"]
    (exec_start,) = unit()["ExecStart"]
    return {
        "Dockerfile": json.loads(last("CMD")),
        **{f"compose {name}": services[name]["command"] for name in ("server", "client")},
        "Kubernetes": container()["args"],
        "systemd": shlex.split(exec_start)[1:],
        **{line: shlex.split(line) for line in re.findall(r"\bgemmill ((?:key|serve) [^>\n|]*)", script)},
    }


SERVERS = ("Dockerfile", "compose server", "Kubernetes", "systemd")


def environments() -> dict[str, dict[str, str]]:
    return {
        "Dockerfile": dict(pair.split("=", 1) for pair in shlex.split(last("ENV"))),
        **{f"compose {name}": service.get("environment", {}) for name, service in compose()["services"].items()},
        "Kubernetes": objects()["ConfigMap"]["data"],
        "systemd": dict(pair.split("=", 1) for pair in unit()["Environment"]),
    }


def options(words: Sequence[str]) -> dict[str, str]:
    """Options of a command line with their values; all are such of their command."""
    left = [*words]
    command: Any = typer.main.get_command(application())
    while left and left[0] in getattr(command, "commands", {}):
        command = command.commands[left.pop(0)]
    known = {option: parameter for parameter in command.params for option in parameter.opts}
    found = {}
    while left:
        if (word := left.pop(0)).startswith("-"):
            assert word in known, f"{command.name} has no option {word}"
            found[word] = "" if known[word].is_flag else left.pop(0)
        else:
            assert command.name != "serve", f"it takes no argument: {word}"
    return found


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


# -- and what holds of it --


def test_commands_are_such() -> None:
    found = {who: options(words) for who, words in commands().items()}
    for who in SERVERS:
        assert commands()[who][0] == "serve"
        assert found[who]["--host"] == "0.0.0.0"
        assert {"--tokens", "--sign"} <= found[who].keys(), f"{who}: open to all, or unsigned"
        assert not {"--port", "--drain", "--connections", "--timeout", "--state"} & found[who].keys(), (
            "what follows assumes the defaults"
        )
    parse_name(commands()["compose client"][-1])


def test_environments_are_settings() -> None:
    for who, environment in environments().items():
        assert all(isinstance(value, str) for value in environment.values()), who
        Settings.read(environment)  # their values
        for name in environment:
            assert name in settings._FIELDS or re.fullmatch(r"AWS_\w+|PATH|PYTHON\w+|BUCKET", name), f"{who}: {name}"


def test_the_port_is_the_servers() -> None:
    port = DEFAULTS.port
    assert last("EXPOSE") == str(port)
    services = compose()["services"]
    assert services["server"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"127.0.0.1:{port}/readyz" in services["server"]["healthcheck"]["test"][-1]
    assert services["client"]["environment"]["GEMMILL_REMOTE"] == f"http://server:{port}"
    assert options(commands()["compose server"])["--allow-host"] == "server"
    service = objects()["Service"]["metadata"]
    assert options(commands()["Kubernetes"])["--allow-host"] == f"{service['name']}.{service['namespace']}.svc"
    ((name, number),) = ((one["name"], one["containerPort"]) for one in container()["ports"])
    assert number == port
    assert [one["targetPort"] for one in objects()["Service"]["spec"]["ports"]] == [name]
    assert {container()[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} == {name}


def test_all_give_it_the_time_to_drain() -> None:
    assert seconds(compose()["services"]["server"]["stop_grace_period"]) > ENDS_AFTER
    before = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod()["terminationGracePeriodSeconds"] > before + ENDS_AFTER
    assert seconds(unit()["TimeoutStopSec"][0]) > ENDS_AFTER
    assert unit()["KillMode"] == ["mixed"], "processes that compile are ended by the server"
    assert last("STOPSIGNAL") == "SIGTERM"


def test_there_are_as_many_files_as_connections_take() -> None:
    assert int(unit()["LimitNOFILE"][0]) >= DEFAULTS.connections + server._SPARE_FILES


def test_probes_are_paths_of_the_server() -> None:
    open_to_all = {endpoint.path for endpoint in ENDPOINTS if not endpoint.scope}
    assert container()["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container()["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert {"/healthz", "/readyz"} <= open_to_all
    schemes = {container()[probe]["httpGet"]["scheme"] for probe in ("livenessProbe", "readinessProbe")}
    assert schemes == {"HTTPS" if "--tls-cert" in container()["args"] else "HTTP"}


def test_store_and_temporary_files_are_on_volumes() -> None:
    assert json.loads(last("VOLUME")) == [STATE, "/tmp"]
    assert environments()["Dockerfile"]["GEMMILL_STORE"] == environments()["systemd"]["GEMMILL_STORE"] == STORE
    assert f"/var/lib/{unit()['StateDirectory'][0]}" == STATE
    mounts = {mount["mountPath"]: mount["name"] for mount in container()["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    assert {*mounts.values()} == {*volumes}
    for path in (STATE, "/tmp"):
        assert "emptyDir" in volumes[mounts[path]]
    room = number_of_bytes("sizeLimit", volumes[mounts[STATE]]["emptyDir"]["sizeLimit"].removesuffix("i"))
    assert number_of_bytes("", objects()["ConfigMap"]["data"]["GEMMILL_STORE_BYTES"]) < room
    for name, service in compose()["services"].items():
        if service["image"].startswith("gemmill"):
            assert service["read_only"] is True, name
    for name in ("server", "client"):
        service = compose()["services"][name]
        assert any(mount.endswith(f":{STATE}") for mount in service["volumes"])
        assert [mount.partition(":")[0] for mount in service["tmpfs"]] == ["/tmp"]


def test_files_that_a_command_names_are_mounted() -> None:
    mounted = {
        "compose server": [mount.split(":")[1] for mount in compose()["services"]["server"]["volumes"]],
        "Kubernetes": [mount["mountPath"] for mount in container()["volumeMounts"]],
        "systemd": ["/etc/gemmill", "${CREDENTIALS_DIRECTORY}"],
    }
    made = re.findall(r"/\S+", next(rest for word, rest in dockerfile() if rest.startswith("install -d")))
    mounted["Dockerfile"] = made
    for who in SERVERS:
        for option, value in options(commands()[who]).items():
            if option in ("--tokens", "--sign", "--tls-cert", "--tls-key"):
                assert str(Path(value).parent) in mounted[who], f"{who}: {option} {value}"
    credentials = {value.partition(":")[0] for value in unit()["LoadCredential"]}
    assert credentials == {*re.findall(r"\$\{CREDENTIALS_DIRECTORY\}/(\S+)", unit()["ExecStart"][0])}


def test_the_dockerfile_keeps_to_the_rules() -> None:
    words = [word for word, _ in dockerfile()]
    assert words.count("FROM") == 2, "what builds does not ship"
    assert "ADD" not in words, "nothing comes from the network but by pip"
    user = re.fullmatch(r"(\d+):(\d+)", last("USER"))
    assert user
    assert user[1] != "0"
    assert words.index("USER") > max(i for i, word in enumerate(words) if word == "RUN")
    for instruction in ("ENTRYPOINT", "CMD", "VOLUME"):
        assert isinstance(json.loads(last(instruction)), list), "exec form"
    said = " ".join(rest for word, rest in dockerfile() if word in ("ARG", "ENV"))
    assert not re.search(r"(?i)token|secret|password|sign", said)
    for word, rest in dockerfile():
        if word == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert f"!{source}" in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    links = {path.resolve().name for path in (ROOT / "src" / "gemmill").iterdir() if path.is_symlink()}
    assert links <= {rest.split()[0] for word, rest in dockerfile() if word == "COPY"}, "src/gemmill leads there"
    extras = next(rest for word, rest in dockerfile() if rest.startswith("EXTRAS=")).partition("=")[2].split(",")
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*extras} <= {*known}


def errors(schema: Any, document: Any) -> list[str]:
    found = jsonschema.Draft202012Validator(schema).iter_errors(document)
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in found]


def test_compose_satisfies_its_schema() -> None:
    schema = json.loads((ROOT / "tests/data/deploy/compose.json").read_text())
    assert not errors(schema, compose())
    assert errors(schema, {"services": {"server": {"comand": []}}}), "the schema tells nothing"
    services = compose()["services"]
    for service in services.values():
        assert {*service.get("depends_on", ())} <= {*services}
        named = {mount.partition(":")[0] for mount in service.get("volumes", ()) if not mount.startswith(".")}
        assert named <= {*compose()["volumes"]}
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    built = {service["image"]: service["build"] for service in services.values() if "build" in service}
    assert {service["image"] for name, service in services.items() if name != "bucket"} == built.keys()
    for build in built.values():
        assert (DEPLOY / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).is_file()
        assert {*build.get("args", ())} <= {rest.partition("=")[0] for word, rest in dockerfile() if word == "ARG"}


def test_objects_satisfy_kubernetes_schemas() -> None:
    schema = json.loads((ROOT / "tests/data/deploy/kubernetes.json").read_text())
    assert {*objects()} == {"Namespace", "ConfigMap", "Deployment", "Service", "PodDisruptionBudget"}
    for kind, one in objects().items():
        assert not errors({"$ref": f"#/$defs/{kind}", **schema}, one)
        assert errors({"$ref": f"#/$defs/{kind}", **schema}, one | {"sepc": {}}), "the schema tells nothing"


def test_objects_mean_the_same_pods() -> None:
    labels = objects()["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [objects()[kind]["spec"]["selector"]["matchLabels"] for kind in ("Deployment", "PodDisruptionBudget")]
    for selector in (*selectors, objects()["Service"]["spec"]["selector"]):
        assert selector.items() <= labels.items()
    assert objects()["Deployment"]["spec"]["replicas"] > objects()["PodDisruptionBudget"]["spec"]["maxUnavailable"]
    assert {"configMapRef": {"name": objects()["ConfigMap"]["metadata"]["name"]}} in container()["envFrom"]
    expanded = re.findall(r"\$\((\w+)\)", " ".join(container()["args"]))
    assert {*expanded} <= {*objects()["ConfigMap"]["data"]}
    modes = [volume["secret"]["defaultMode"] for volume in pod()["volumes"] if "secret" in volume]
    assert modes
    assert not any(mode & 0o007 for mode in modes), "a private key that others may read is refused"


VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
OF_PODS: dict[str, Callable[[Any], bool]] = {
    "hostNetwork": lambda spec: not spec.get("hostNetwork"),
    "hostPID": lambda spec: not spec.get("hostPID"),
    "hostIPC": lambda spec: not spec.get("hostIPC"),
    "sysctls": lambda spec: not spec.get("securityContext", {}).get("sysctls"),
    "volumes": lambda spec: all(volume.keys() - {"name"} <= VOLUMES for volume in spec.get("volumes", ())),
}
OF_CONTAINERS: dict[str, Callable[[Any, Any], bool]] = {
    "privileged": lambda own, _: not own.get("privileged"),
    "allowPrivilegeEscalation": lambda own, _: own.get("allowPrivilegeEscalation") is False,
    "drop": lambda own, _: "ALL" in own.get("capabilities", {}).get("drop", ()),
    "add": lambda own, _: {*own.get("capabilities", {}).get("add", ())} <= {"NET_BIND_SERVICE"},
    "procMount": lambda own, _: own.get("procMount", "Default") == "Default",
    "runAsNonRoot": lambda _, both: both.get("runAsNonRoot") is True,
    "runAsUser": lambda _, both: both.get("runAsUser") != 0,
    "seccompProfile": lambda _, both: both.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
    "appArmorProfile": lambda _, both: both.get("appArmorProfile", {}).get("type") != "Unconfined",
    "seLinuxOptions": lambda _, both: not both.get("seLinuxOptions"),
}
"""Rules of the profile "restricted" of the Pod Security Standards, those of "baseline" included: of a container's own
securityContext, and of it with the pod's behind it."""


def violations(spec: Any) -> list[str]:
    """Rules of the profile that a pod breaks."""
    found = [name for name, holds in OF_PODS.items() if not holds(spec)]
    for one in (*spec["containers"], *spec.get("initContainers", ()), *spec.get("ephemeralContainers", ())):
        own = one.get("securityContext", {})
        found += [
            name for name, holds in OF_CONTAINERS.items() if not holds(own, spec.get("securityContext", {}) | own)
        ]
        found += ["hostPort" for port in one.get("ports", ()) if "hostPort" in port]
        found += [
            "host"
            for probe in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")
            if '"host":' in json.dumps(one.get(probe))
        ]
    return found


def test_pods_satisfy_the_restricted_profile() -> None:
    assert not violations(pod())
    bare = {"containers": [{"name": "bare"}], "volumes": [{"name": "host", "hostPath": {"path": "/"}}]}
    assert violations(bare) == ["volumes", "allowPrivilegeEscalation", "drop", "runAsNonRoot", "seccompProfile"]
    assert objects()["Namespace"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert container()["securityContext"]["readOnlyRootFilesystem"] is True
    context = pod()["securityContext"]
    assert last("USER") == f"{context['runAsUser']}:{context['runAsGroup']}"
    assert context["fsGroup"] == context["runAsGroup"], "secrets are that group's"


def test_the_unit_is_confined() -> None:
    for name in ("DynamicUser", "ProtectHome", "PrivateTmp", "PrivateDevices", "NoNewPrivileges", "RestrictNamespaces"):
        assert unit()[name] == ["yes"], name
    assert unit()["ProtectSystem"] == ["strict"]
    assert unit()["CapabilityBoundingSet"] == [""]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "gemmill.service").read_text()
    program = shlex.split(unit()["ExecStart"][0])[0]
    path = tmp_path / "gemmill.service"
    path.write_text(text.replace(program, sys.executable))  # it must be there
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    path.write_text(text.replace(program, sys.executable).replace("TimeoutStopSec=60", "TimeoutStop=60"))
    assert "TimeoutStop" in subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True).stderr
