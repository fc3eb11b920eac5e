# One of the two images, from a file tree that `make images` makes of Debian packages: no base image, so no registry is
# asked. scripts/install/imagespecs.py lists the contents.
FROM scratch
ARG VERSION
ARG COMMIT
ARG ACCOUNT
LABEL org.opencontainers.image.title="koordinator-py" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1
ADD rootfs.tar /
USER ${ACCOUNT}
