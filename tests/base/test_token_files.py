from llmkube.base.token_files import ensure_token


def test_the_token_stays_and_is_long(tmp_path):
    """A restart keeps the token, so that kubeconfigs go on working."""
    token = ensure_token(tmp_path / "token")
    assert len(token) >= 43
    assert ensure_token(tmp_path / "token") == token
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
