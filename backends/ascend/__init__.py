"""Huawei Ascend NPUs through torch_npu. It is imported only when this backend is chosen."""
