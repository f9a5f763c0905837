# The atlas with all it runs on, and nothing of this machine.
#
#   docker build -t ddl-atlas .                                             # CPU
#   docker build -t ddl-atlas --build-arg TORCH_INDEX=https://pypi.org/simple .   # CUDA
#   docker run --rm --init --shm-size 1g ddl-atlas atlas run ring-all-reduce --ranks 4
#   docker run --rm --init --shm-size 1g --gpus all ddl-atlas atlas run ring-all-reduce
#   docker run --rm --init -p 127.0.0.1:8000:8000 ddl-atlas \
#     mkdocs serve -f /opt/site.yml -a 0.0.0.0:8000
#
# PyPI's torch brings CUDA in its own wheels, so both kinds stand on the same image; the
# host needs a driver and the NVIDIA container toolkit.
FROM python:3.13-slim-bookworm AS tools
# The compiler builds the emulated GPU.
RUN apt-get update \
  && apt-get install --yes --no-install-recommends g++ git \
  && rm -rf /var/lib/apt/lists/*
ENV OMP_NUM_THREADS=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

FROM tools AS wheel
COPY . /src
WORKDIR /src
RUN pip install -c constraints.txt hatchling && python -m hatchling build -t wheel -d /dist

FROM tools AS atlas
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY --from=wheel /dist /dist
COPY constraints.txt /dist/
# torch first and alone: only it comes from another index.
RUN pip install -c /dist/constraints.txt --no-deps --index-url "$TORCH_INDEX" torch \
  && pip install -c /dist/constraints.txt "$(ls /dist/*.whl)[run,docs]" \
  && ln -s "$(python -c 'import atlas; print(atlas.__file__)' | xargs dirname)/../mkdocs.yml" \
    /opt/site.yml
RUN useradd --create-home atlas
USER atlas
WORKDIR /home/atlas
CMD ["atlas", "--help"]
