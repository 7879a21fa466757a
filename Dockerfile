# JupyterLab on the first lesson, as an ordinary user, with the packages of `make lab`:
#   docker build -t attn-course .
#   docker run --rm -p 127.0.0.1:8888:8888 -v attn-course-work:/course/work attn-course
# `--gpus all` gives it an NVIDIA GPU, where the host has NVIDIA's container toolkit.
# Your copies of the lessons stay in the volume attn-course-work. podman takes the same commands.
FROM python:3.13-slim
# What systemd's tools look for too: the server is to be reached from outside the container.
ENV container=oci
RUN useradd --create-home learner
WORKDIR /course
COPY requirements/lab.lock requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/lab.lock
COPY . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation -e kernelscope -e .
RUN mkdir -p work && chown learner . work
USER learner
EXPOSE 8888
CMD ["attn-course", "lessons", "--open"]
