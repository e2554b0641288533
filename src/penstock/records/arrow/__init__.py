"""Record batches to Arrow columns and back, by compiled kernels. Needs the extra `spark`."""
