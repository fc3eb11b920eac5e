"""What installation needs beside the manifests of the components: the Helm chart and the objects for Prometheus."""
