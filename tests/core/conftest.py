from __future__ import annotations

import shutil

import pytest

from tests.kit.servers.servers import Certificates, make_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command, which makes the certificates, is not installed")
    return make_certificates(tmp_path_factory.mktemp("certificates"))
