"""`python -m cdc.devstack`: fetch what the servers need, so that later nothing is waited for and no network is needed."""

from cdc.devstack.jars import fetch, locked
from cdc.devstack.kafka import record_classes

if __name__ == "__main__":
    fetch([*locked("kafka"), *locked("postgres15")])
    record_classes()
