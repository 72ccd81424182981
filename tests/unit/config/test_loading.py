from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from sidetier.config.loading import LoadedConfig, load
from sidetier.segments.errors import ConfigurationError

LEAST = """\
cluster: {name: prod-a}
log_dirs: [/data]
storage:
  url: s3://bucket
"""


def written(tmp_path: Path, text: str, name: str = "sidetier.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def problems(
    files: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(files, environ, flags)
    return str(caught.value).splitlines()


class TestLayers:
    @pytest.fixture
    def loaded(self, tmp_path: Path) -> LoadedConfig:
        text = LEAST + "  s3: {region: file, storage_class: FILE}\nuploader:\n  threads: 2\n"
        environ = {"SIDETIER_STORAGE__S3__REGION": "env", "SIDETIER_UPLOADER__THREADS": "3"}
        return load([written(tmp_path, text)], environ, ["uploader.threads=4"])

    def test_source_with_higher_precedence_wins(self, loaded: LoadedConfig) -> None:
        assert loaded.config.uploader.threads == 4
        assert loaded.config.storage.s3.region == "env"
        assert loaded.config.storage.s3.storage_class == "FILE"
        assert loaded.config.uploader.request_threads == 32

    def test_every_value_has_its_source(self, loaded: LoadedConfig, tmp_path: Path) -> None:
        assert loaded.origin(("uploader", "threads")) == "flag --set"
        assert loaded.origin(("storage", "s3", "region")) == "env SIDETIER_STORAGE__S3__REGION"
        file = tmp_path / "sidetier.yaml"
        assert loaded.origin(("storage", "s3", "storage_class")) == f"{file}:5"
        assert loaded.origin(("log_dirs",)) == f"{file}:2"

    def test_setting_missing_in_a_section_is_a_default(self, loaded: LoadedConfig) -> None:
        assert loaded.origin(("http", "port")) == "default"
        assert loaded.origin(("storage", "s3", "profile")) == "default"
        assert loaded.origin(("uploader", "request_threads")) == "default"

    def test_later_file_wins_and_lists_are_replaced(self, tmp_path: Path) -> None:
        first = written(tmp_path, LEAST + "topics: {include: [a, b], exclude: [c]}\n")
        second = written(tmp_path, "topics:\n  include: [d]\n", "more.yaml")
        loaded = load([first, second])
        assert loaded.config.topics.include == ("d",)
        assert loaded.config.topics.exclude == ("c",)
        assert loaded.origin(("topics", "include", 0)) == f"{second}:2"
        assert loaded.origin(("topics", "exclude", 0)) == f"{first}:5"

    def test_secret_is_replaced_as_a_whole(self, tmp_path: Path) -> None:
        text = LEAST + "  s3: {access_key_id: {env: A}, secret_access_key: {env: B}}\n"
        more = "storage: {s3: {secret_access_key: {file: /run/b}}}\n"
        loaded = load([written(tmp_path, text), written(tmp_path, more, "more.yaml")])
        secret = loaded.config.storage.s3.secret_access_key
        assert secret is not None
        assert (secret.env, secret.file) == (None, Path("/run/b"))

    def test_encryption_key_is_replaced_as_a_whole(self, tmp_path: Path) -> None:
        keys = "storage: {encryption: {keys: {%s}}}\n"
        text = LEAST + "  encryption: {key: k1, keys: {k1: {env: A}, k2: {env: B}}}\n"
        more = written(tmp_path, keys % "k2: {file: /run/b}, k3: {env: C}", "more.yaml")
        first = written(tmp_path, text)
        loaded = load([first, more], flags=["storage.encryption.keys.k1={file: /run/a}"])
        encryption = loaded.config.storage.encryption
        assert encryption is not None
        places = {name: (key.env, key.file) for name, key in encryption.keys.items()}
        assert places == {
            "k1": (None, Path("/run/a")),
            "k2": (None, Path("/run/b")),
            "k3": ("C", None),
        }
        assert loaded.origin(("storage", "encryption", "keys", "k2", "file")) == f"{more}:1"
        region = written(tmp_path, keys % "k1: {region: eu-west-1}", "region.yaml")
        with pytest.raises(ConfigurationError, match=r"keys\.k1.*one of env, file and aws_kms"):
            load([first, region])

    def test_empty_section_means_defaults(self, tmp_path: Path) -> None:
        assert load([written(tmp_path, LEAST + "uploader:\nhttp:\n")]).config.http.port == 9108


class TestEnvironmentAndFlags:
    def test_text_settings_stay_text_and_others_are_parsed_as_yaml(self) -> None:
        environ = {
            "SIDETIER_CLUSTER__NAME": "123",
            "SIDETIER_LOG_DIRS": "[/a, /b]",
            "SIDETIER_STORAGE__URL": "file:///archive",
            "SIDETIER_UPLOADER__LOCAL_RETENTION": "null",
            "SIDETIER_UPLOADER__RESCAN_INTERVAL": "1m",
            "SIDETIER_BROKER__CLIENT": "{security.protocol: SSL}",
            "SIDETIER_BROKER__BOOTSTRAP_SERVERS": "localhost:9092",
            "SIDETIER_BROKER__ID": "",
        }
        config = load(environ=environ).config
        assert config.cluster.name == "123"
        assert config.log_dirs == (Path("/a"), Path("/b"))
        assert config.uploader.local_retention is None
        assert config.uploader.rescan_interval == 60.0
        assert config.broker.client == {"security.protocol": "SSL"}
        assert config.broker.id is None

    def test_flag_can_set_an_entry_of_a_free_form_mapping(self, tmp_path: Path) -> None:
        flags = ["broker.client.sasl.username=a", "broker.bootstrap_servers=b:1"]
        loaded = load([written(tmp_path, LEAST)], flags=flags)
        assert loaded.config.broker.client == {"sasl.username": "a"}

    def test_secret_can_be_set_by_a_nested_name(self, tmp_path: Path) -> None:
        environ = {
            "SIDETIER_STORAGE__S3__ACCESS_KEY_ID__ENV": "KEY",
            "SIDETIER_STORAGE__S3__SECRET_ACCESS_KEY": "{env: SECRET}",
        }
        s3 = load([written(tmp_path, LEAST)], environ).config.storage.s3
        assert s3.access_key_id is not None
        assert s3.access_key_id.env == "KEY"

    def test_unknown_variable_is_refused_with_a_suggestion(self, tmp_path: Path) -> None:
        environ = {"SIDETIER_STORAGE__URI": "x", "OTHER": "y"}
        [line] = problems([written(tmp_path, LEAST)], environ)
        assert "SIDETIER_STORAGE__URI" in line
        assert line.endswith("did you mean SIDETIER_STORAGE__URL?")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("SIDETIER_CONFIG", "x"),
            ("SIDETIER_SCHEMA_REGISTRY_USER_INFO", "user:password"),  # of `sidetier export`
            ("SIDETIER_SERVICE_HOST", "10.0.0.1"),
            ("SIDETIER_METRICS_SERVICE_PORT_HTTP", "80"),
            ("SIDETIER_PORT", "tcp://10.0.0.1:80"),
            ("SIDETIER_HTTP_PORT", "tcp://10.0.0.1:80"),
            ("SIDETIER_PORT_9108_TCP_ADDR", "10.0.0.1"),
        ],
    )
    def test_variables_of_other_programs_are_ignored(
        self, name: str, value: str, tmp_path: Path
    ) -> None:
        assert load([written(tmp_path, LEAST)], {name: value}).config.http.port == 9108

    def test_missing_underscore_in_a_variable_is_detected(self, tmp_path: Path) -> None:
        [line] = problems([written(tmp_path, LEAST)], {"SIDETIER_HTTP_PORT": "80"})
        assert line.endswith("did you mean SIDETIER_HTTP__PORT?")

    @pytest.mark.parametrize(
        ("flag", "expected"),
        [
            ("uploader.thread=1", "--set uploader.thread: no setting has this name; did you mean"),
            ("nonsense", "--set nonsense: must be key=value"),
            ("http.port=[", "http.port (flag --set): is not YAML"),
            ("http.port=many", "http.port (flag --set): must be a whole number, not 'many'"),
            ("=1", "--set : no setting has this name"),
        ],
    )
    def test_invalid_flags_are_refused(self, flag: str, expected: str, tmp_path: Path) -> None:
        [line] = problems([written(tmp_path, LEAST)], flags=[flag])
        assert line.startswith(expected)


class TestErrors:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("uploader: {threads: '8'}", "uploader.threads ({file}:5): must be a whole number"),
            ("uploader: {threads: 0}", "uploader.threads ({file}:5): must be at least 1, not 0"),
            ("http: {port: true}", "http.port ({file}:5): must be a whole number, not true"),
            ("topics: {internal: 'yes'}", "topics.internal ({file}:5): must be true or false"),
            ("topics: {include: a}", "topics.include ({file}:5): must be a list, not 'a'"),
            ("topics: {include: []}", "topics.include ({file}:5): must have at least 1 entry"),
            ("topics: {include: ['(']}", "topics.include[0] ({file}:5): must be a regular"),
            ("log: [json]", "log ({file}:5): must be a mapping of settings, not a list"),
            ("log: {level: warn}", "log.level ({file}:5): must be 'debug', 'info', 'warning'"),
            ("upload: {}", "upload ({file}:5): no setting has this name; did you mean uploader?"),
            ("log: {levle: info}", "log.levle ({file}:5): no setting has this name; did you mean"),
            ("broker: {client: {a: [1]}}", "broker.client.a ({file}:5): must be text, a number"),
            ("uploader: {rescan_interval: soon}", "uploader.rescan_interval ({file}:5): must be a"),
            ("http: {1: 2}", "http.1 ({file}:5): the key must be text"),
            ("http: {port: 1, port: 2}", "http.port ({file}:5): occurs twice in {file}, on lines"),
            ("leadership: {static: {partitions: [x]}}", "leadership.static.partitions[0] ({file}:"),
        ],
    )
    def test_problem_line_names_setting_location_and_remedy(
        self, text: str, expected: str, tmp_path: Path
    ) -> None:
        file = written(tmp_path, LEAST + text + "\n")
        lines = problems([file])
        assert lines[0].startswith(expected.format(file=file))

    def test_all_problems_are_reported_at_once(self, tmp_path: Path) -> None:
        text = LEAST + "  retries: 1\nuploader: {threads: 1.5}\nhttp: {port: 70000}\n"
        lines = problems([written(tmp_path, text)], {"SIDETIER_X": "1"}, ["log.level=loud"])
        assert len(lines) == 5

    def test_every_missing_required_setting_is_named(self) -> None:
        assert problems() == [
            "cluster.name: is required",
            "log_dirs: is required",
            "storage.url: is required",
        ]

    @pytest.mark.parametrize(
        "text",
        [
            "leadership: {zookeeper: {sasl: {password: hunter2}}}",
            "leadership: {zookeeper: {sasl: {password: [hunter2]}}}",
            "leadership: {zookeeper: {sasl: {password: {env: [hunter2]}}}}",
            "broker: {client: {sasl.password: hunter2}}",
            "broker: {client: {sasl.password: [hunter2]}}",
            "broker: {client: {ssl.key.pem: {envy: hunter2}}}",
            "broker: {client: {sasl.oauthbearer.assertion.private.key.passphrase: hunter2}}",
            "broker: {client: {sasl.oauthbearer.client.credentials.client.secret: hunter2}}",
            "storage: {url: 's3://b', s3: {secret_access_key: hunter2}}",
            "storage: {url: 's3://b', s3: {endpoint_url: 'http://password:hunter2@store:9000'}}",
        ],
    )
    def test_secret_in_the_wrong_place_is_not_repeated(self, text: str, tmp_path: Path) -> None:
        file = written(tmp_path, "cluster: {name: a}\nlog_dirs: [/d]\n" + text)
        with pytest.raises(ConfigurationError) as caught:
            load([file], flags=["storage.url=s3://b"])
        assert "hunter2" not in str(caught.value)
        assert "env: NAME" in str(caught.value) or "password" in str(caught.value)
        assert caught.value.__cause__ is None

    def test_refused_url_shows_no_password(self, tmp_path: Path) -> None:
        file = written(tmp_path, "storage: {s3: {endpoint_url: 'ftp://user:hunter2@store:9000'}}")
        with pytest.raises(ConfigurationError, match=r"not 'ftp://\[redacted\]@store:9000'"):
            load([file])

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("a: [", "sidetier.yaml:1:5: is not YAML"),
            ("- a\n- b\n", "sidetier.yaml:1: must be a mapping of settings"),
            ("? [a]\n: b\n", "sidetier.yaml:1: a key must be text"),
            ("a: &a\n  b: *a\n", "an alias refers to a node that contains it"),
            ("a: !!python/object:os.system {}\n", "is not YAML"),
            ("a: 1\n---\nb: 2\n", "is not YAML"),
            ("a: \x01\n", "is not YAML"),
        ],
    )
    def test_file_that_is_not_a_mapping_is_refused(
        self, text: str, expected: str, tmp_path: Path
    ) -> None:
        with pytest.raises(ConfigurationError, match=r"sidetier\.yaml") as caught:
            load([written(tmp_path, text)])
        assert expected in str(caught.value)

    def test_unreadable_files_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="there is no such configuration file"):
            load([tmp_path / "none.yaml"])
        with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
            load([tmp_path])
        (tmp_path / "latin.yaml").write_bytes(b"a: \xff\n")
        with pytest.raises(ConfigurationError, match=r"is not UTF-8 \(byte 3\)"):
            load([tmp_path / "latin.yaml"])

    def test_merge_keys_and_anchors_are_supported(self, tmp_path: Path) -> None:
        text = LEAST + "http: &h {port: 1}\n"
        config = load([written(tmp_path, text + "log: {level: error}\n")]).config
        assert config.http.port == 1
        merged = LEAST + "uploader:\n  pins: {<<: {max_files: 5}, max_files: 6}\n"
        assert load([written(tmp_path, merged)]).config.uploader.pins.max_files == 6


def test_commands_that_only_read_the_store_need_no_log_dirs(tmp_path: Path) -> None:
    text = "cluster: {name: a}\nstorage: {url: 's3://bucket'}\n"
    file = written(tmp_path, text)
    assert load([file], needs_log_dirs=False).config.log_dirs == ()
    with pytest.raises(ConfigurationError, match="log_dirs: is required"):
        load([file])


SECRET = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2U="


@pytest.mark.parametrize(
    ("keys", "setting", "text"),
    [
        (SECRET, "", "the key itself does not belong in the configuration"),
        (f"[{SECRET}]", "", "the key itself does not belong in the configuration"),
        (f"{{{SECRET}: {{env: KEY}}}}", "", "the name of a key must match"),
        (f"{{k1: {SECRET}}}", ".k1", "the key itself does not belong in the configuration"),
        (f"{{k1: [{SECRET}]}}", ".k1", "the key itself does not belong in the configuration"),
        (f"{{k1: {{{SECRET}: x}}}}", ".k1", "the key itself does not belong in the configuration"),
        (f"{{k1: {{env: {SECRET}}}}}", ".k1.env", "must match ^[A-Za-z_][A-Za-z0-9_]*$"),
        (f"{{k1: {{env: [{SECRET}]}}}}", ".k1.env", "must be text"),
        (f"{{k1: {{file: {SECRET}}}}}", ".k1.file", "must be an absolute path"),
        (f"{{k1: {{aws_kms: [{SECRET}]}}}}", ".k1.aws_kms", "must be text"),
        (f"{{k1: {{aws_kms: alias/k, region: [{SECRET}]}}}}", ".k1.region", "must be text"),
        (f"{{k1: {{aws_kms: alias/k, endpoint_url: {SECRET}}}}}", ".k1.endpoint_url", "must"),
    ],
)
def test_no_value_below_encryption_keys_is_shown(
    tmp_path: Path, keys: str, setting: str, text: str
) -> None:
    path = written(tmp_path, f"{LEAST}  encryption: {{keys: {keys}}}\n")
    lines = problems([path])
    assert any(line.startswith(f"storage.encryption.keys{setting} (") for line in lines), lines
    assert text in "\n".join(lines)
    assert SECRET[:12] not in "\n".join(lines)
