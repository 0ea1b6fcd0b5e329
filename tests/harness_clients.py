"""Runs the tests of the official Python client that need a server: those of its package, unmodified, on the
server of a kubeconfig. Prints each that does not pass, and how many do. tests/harness-clients starts it."""

import asyncio
import importlib
import sys
import types
import unittest

from kubernetes import client, config
from kubernetes.aio import client as aio_client, config as aio_config

# The modules whose tests talk to a server.
MODULES = [
    "kubernetes.dynamic.test_client",
    "kubernetes.dynamic.test_discovery",
    "kubernetes.aio.dynamic.client_test",
    "kubernetes.aio.dynamic.discovery_test",
]


def configuration(kubeconfig):
    made = client.Configuration()
    config.load_kube_config(kubeconfig, client_configuration=made)
    return made


def aio_configuration(kubeconfig):
    made = aio_client.Configuration()
    asyncio.run(aio_config.load_kube_config(kubeconfig, client_configuration=made))
    return made


def provide(package, get_configuration):
    """Adds the module by which the tests find the server. The package leaves it out, as it names a
    cluster of its project."""
    base = types.ModuleType(f"{package}.base")
    base.get_e2e_configuration = get_configuration
    parent = types.ModuleType(package)
    parent.base = base
    sys.modules[package] = parent
    sys.modules[base.__name__] = base


def main(kubeconfig):
    provide("kubernetes.e2e_test", lambda: configuration(kubeconfig))
    provide("kubernetes.aio.e2e_test", lambda: aio_configuration(kubeconfig))
    modules = [importlib.import_module(name) for name in MODULES]
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromModule(one) for one in modules)
    result = unittest.TextTestRunner(stream=sys.stderr, verbosity=2).run(suite)
    failed = sorted({case.id() for case, _ in result.failures + result.errors})
    for name in failed:
        print(f"failed: {name}")
    print(f"passed: {result.testsRun - len(failed) - len(result.skipped)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
