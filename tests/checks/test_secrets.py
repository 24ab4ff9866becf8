"""What is shown of environment variables, secret and plain ones."""

import pytest

from checks import secrets


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("WANDB_API_KEY", "abc", "(redacted)"),
        ("HF_TOKEN", "abc", "(redacted)"),
        ("DB_PASSWORD", "abc", "(redacted)"),
        ("AWS_SECRET_ACCESS_KEY", "abc", "(redacted)"),
        ("HTTPS_PROXY", "http://me:pass@proxy:3128", "http://(redacted)@proxy:3128"),
        ("HCCL_CONNECT_TIMEOUT", "3600", "3600"),
        ("HF_TOKEN", "", ""),
        ("PGPASSWORD", "abc", "(redacted)"),
        ("OPENAI_APIKEY", "abc", "(redacted)"),
        ("MYSQL_PWD", "abc", "(redacted)"),
        ("PWD", "/home", "/home"),
        ("TOKENIZERS_PARALLELISM", "false", "false"),
        ("MAX_TOKENS", "12", "12"),
        ("AUTHOR", "me", "me"),
        ("DB_PASS", "abc", "(redacted)"),
        ("RAY_TLS_KEY", "abc", "(redacted)"),
        ("NPU_PASSES", "3", "3"),
        ("HYDRA_KEYS", "a", "a"),
    ],
)
def test_secrets_are_not_written(name, value, shown):
    assert secrets.redacted({name: value}) == {name: shown}
