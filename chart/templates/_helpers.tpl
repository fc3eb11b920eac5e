{{- define "koordlet.affinity" -}}
{{- if .Values.koordlet.nodeAffinity }}{"nodeAffinity": {{ toJson .Values.koordlet.nodeAffinity }}}{{ else }}{}{{ end }}
{{- end }}
