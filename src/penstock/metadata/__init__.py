"""The cluster's state: one `MetadataStore` protocol and the engines behind it."""
