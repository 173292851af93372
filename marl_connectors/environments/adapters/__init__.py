"""Each kind of environment behind the methods of a parallel one, or of a natively batched one."""
