"""Real brokers and etcd as processes of their own, which end with the process that started them.

`penstock cluster up`, the demo and the tests all start them from here.
"""
