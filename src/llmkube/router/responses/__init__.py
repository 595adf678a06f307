"""Store responses in memory, within bounds and separately for each tenant, so that clients can continue them by id.

store          stored responses with data classes and regions; eviction; requests about stored responses; pure
conversations  joins a request with the conversation that it continues, and stores its answer
"""
