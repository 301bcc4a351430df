# For those who type `just`; the Makefile does the work.

default:
    @make help

run:
    @make run

test *args:
    @make test ARGS="{{ args }}"

check:
    @make check

fmt:
    @make fmt

bench:
    @make bench

bench-bus:
    @make bench-bus

soak:
    @make soak

clean:
    @make clean
