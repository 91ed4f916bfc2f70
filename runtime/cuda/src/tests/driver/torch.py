"""What launchers use of PyTorch, for machines without a GPU."""

from types import SimpleNamespace

for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"):
    globals()[name] = name

GPU = SimpleNamespace(type="cuda", index=0)
SIZES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}


class Tensor:
    def __init__(self, address, dtype, shape=(1,), strides=(1,)):
        self.address, self.dtype, self.shape, self.strides, self.device = address, dtype, shape, strides, GPU

    def data_ptr(self):
        return self.address

    def stride(self):
        return self.strides

    def element_size(self):
        return SIZES.get(self.dtype, 1)


class _Device:
    def __init__(self, device):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


cuda = SimpleNamespace(
    device=_Device,
    current_stream=lambda device: SimpleNamespace(cuda_stream=0, synchronize=lambda: None),
    get_device_capability=lambda device: (9, 0),
    get_device_properties=lambda device: SimpleNamespace(multi_processor_count=5),
)
